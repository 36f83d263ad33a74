"""Selector `contrast`: preference pairs that force a reward model to read the prompt."""

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
def contrast(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str = "reward.instructions",
    verifier: str = "rewards.instructions",
    per_prompt: Count = 2,
    share: Share = 0.5,
) -> list[Group]:
    """Pairs of a verified answer (reward 1) and a failing one, at most `per_prompt` per prompt. The kind is
    stored in the prompt's meta:

    `contrast` (a `share` of them): the rejected answer satisfies another instruction on the same question
    (`meta["question"]`) but fails this one by `verifier`, so only the prompt distinguishes the two.
    `pass_fail`: the rejected answer was given to this prompt. If one kind is missing, the other fills in.
    Chosen answers are the prompt's own verified ones; without any, answers to another instruction on the
    question that also satisfy this one. The choice depends on seed and prompt id only.
    """
    rescore = build("annotate", {"name": verifier})
    by_question: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        by_question[str(group.prompt.meta.get("question"))].append(group)
    made: list[Group] = []
    for group in groups:
        siblings = [
            other
            for other in by_question[str(group.prompt.meta.get("question"))]
            if other.prompt.id != group.prompt.id
        ]
        others = [bare(t) for other in siblings for t in other.trajectories]
        obeyed = [value >= 1 for other in siblings for value in rewards_of(other, reward)]
        (scored,) = rescore([Group(group.prompt, tuple(others))], ctx)[reward] if others else ([],)
        values = [*rewards_of(group, reward), *(math.nan if value is None else value for value in scored)]
        own, key = len(group.trajectories), f"{ctx.seed}/{group.prompt.id}"
        passing = [i for i in range(own) if values[i] >= 1] or [
            i for i in range(own, len(values)) if values[i] >= 1
        ]
        found = {
            "contrast": drawn([i for i in range(own, len(values)) if obeyed[i - own] and values[i] < 1], key),
            "pass_fail": drawn([i for i in range(own) if values[i] < 1], key),
        }
        ctx.counts["prompts without a verified answer"] += not passing
        wanted = round(per_prompt * share)
        whole = Group(group.prompt, (*group.trajectories, *others), {reward: values})
        chosen = drawn(passing, key)
        for number, kind in enumerate(["contrast"] * wanted + ["pass_fail"] * (per_prompt - wanted)):
            kind = kind if found[kind] else "pass_fail" if found["pass_fail"] else "contrast"
            if not chosen or not found[kind]:
                break
            pairs = pair(whole, chosen[number % len(chosen)], found[kind].pop(0), values, ctx, reward)
            made += [
                of_kind(one.replace([bare(t) for t in one.trajectories]), kind) for one in pairs
            ]  # without tokens, since answers may come from different prompts
            ctx.counts[f"pairs of kind {kind}"] += len(pairs)
    return made
