"""Preference pairs for a reward model that must read the prompt."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from ratchet.components.piece import build, piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.pieces.selectors.pairs import bare, drawn, of_kind, pair
from ratchet.components.recipes.ranges import Count, Share
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), writes=("margin",), makes="pairs", paper="arXiv:2309.16155")
def contrast(groups: Sequence[Group], ctx: Context, *, reward: str = "reward.instructions", verifier: str = "rewards.instructions",
             per_prompt: Count = 2, share: Share = 0.5) -> list[Group]:
    """Pairs of a verified answer (reward 1) and one that fails, at most `per_prompt` a prompt, of two kinds in the prompt's meta:

    `contrast`, a `share` of them: the rejected answer obeys another instruction on the same question (`meta["question"]`) and fails
    this one by `verifier`, so that what distinguishes the two stands in the prompt alone. `pass_fail`: it answers this prompt.
    Where a prompt lacks one kind the other takes its place. Chosen are the prompt's own verified answers; where it has none, answers
    to another instruction on its question that obey this one too. The draw depends on seed and prompt id alone.
    """
    rescore = build("annotate", {"name": verifier})
    asked: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        asked[str(group.prompt.meta.get("question"))].append(group)
    made: list[Group] = []
    for group in groups:
        siblings = [other for other in asked[str(group.prompt.meta.get("question"))] if other.prompt.id != group.prompt.id]
        others = [bare(t) for other in siblings for t in other.trajectories]
        obeyed = [value >= 1 for other in siblings for value in rewards_of(other, reward)]
        (scored,) = rescore([Group(group.prompt, tuple(others))], ctx)[reward] if others else ([],)
        values = [*rewards_of(group, reward), *(math.nan if value is None else value for value in scored)]
        own, key = len(group.trajectories), f"{ctx.seed}/{group.prompt.id}"
        passing = [i for i in range(own) if values[i] >= 1] or [i for i in range(own, len(values)) if values[i] >= 1]
        found = {"contrast": drawn([i for i in range(own, len(values)) if obeyed[i - own] and values[i] < 1], key),
                 "pass_fail": drawn([i for i in range(own) if values[i] < 1], key)}
        ctx.counts["prompts without a verified answer"] += not passing
        wanted = round(per_prompt * share)
        whole = Group(group.prompt, (*group.trajectories, *others), {reward: values})
        chosen = drawn(passing, key)
        for number, kind in enumerate(["contrast"] * wanted + ["pass_fail"] * (per_prompt - wanted)):
            kind = kind if found[kind] else "pass_fail" if found["pass_fail"] else "contrast"
            if not chosen or not found[kind]:
                break
            pairs = pair(whole, chosen[number % len(chosen)], found[kind].pop(0), values, ctx, reward)
            made += [of_kind(one.replace([bare(t) for t in one.trajectories]), kind) for one in pairs]  # without tokens: they may come from two prompts
            ctx.counts[f"pairs of kind {kind}"] += len(pairs)
    return made
