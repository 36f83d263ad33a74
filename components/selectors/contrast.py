"""Preference pairs for a reward model that must read the prompt."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Sequence

from components.advantages.read import rewards_of
from components.piece import build, piece
from components.selectors.pairs import pair
from components.types import Context, Group, Trajectory


@piece(reads=("{reward}",), writes=("margin",), paper="arXiv:2309.16155")
def contrast(groups: Sequence[Group], ctx: Context, *, reward: str = "reward.instructions", verifier: str = "rewards.instructions",
             per_prompt: int = 2, share: float = 0.5) -> list[Group]:
    """Pairs of a verified answer (reward 1) and one that fails, at most `per_prompt` a prompt, of two kinds in the prompt's meta:

    `contrast`, a `share` of them: the rejected answer obeys another instruction on the same question (`meta["question"]`) and fails
    this one by `verifier`, so that what distinguishes the two stands in the prompt alone. `pass_fail`: it answers this prompt.
    Where a prompt lacks one kind the other takes its place. The draw depends on seed and prompt id alone.
    """
    rescore = build("annotate", {"name": verifier})
    obeying: dict[str, list[tuple[str, Trajectory]]] = defaultdict(list)
    for group in groups:
        for trajectory, value in zip(group.trajectories, rewards_of(group, reward), strict=True):
            if value >= 1:
                obeying[str(group.prompt.meta.get("question"))].append((group.prompt.id, trajectory))
    made: list[Group] = []
    for group in groups:
        values = rewards_of(group, reward)
        passing = [i for i, value in enumerate(values) if value >= 1]
        failing = [i for i, value in enumerate(values) if value < 1]
        others = [t for owner, t in obeying[str(group.prompt.meta.get("question"))] if owner != group.prompt.id]
        if others and passing:
            (scored,) = rescore([Group(group.prompt, tuple(others))], ctx)[reward]
            others = [bare(t) for t, value in zip(others, scored, strict=True) if value is not None and value < 1]
        ctx.counts["prompts without a verified answer"] += not passing
        wanted = round(per_prompt * share)
        found = {"contrast": _drawn([*range(len(values), len(values) + len(others))], ctx, group.prompt.id) if passing else [],
                 "pass_fail": _drawn(failing, ctx, group.prompt.id) if passing else []}
        kinds = ["contrast"] * wanted + ["pass_fail"] * (per_prompt - wanted)
        whole = Group(group.prompt, (*group.trajectories, *others), {reward: [*values, *[0.0] * len(others)]})
        chosen = _drawn(passing, ctx, group.prompt.id)
        for number, kind in enumerate(kinds):
            kind = kind if found[kind] else "pass_fail" if found["pass_fail"] else "contrast"
            if not chosen or not found[kind]:
                break
            pairs = pair(whole, chosen[number % len(chosen)], found[kind].pop(0), whole.columns[reward], ctx, reward)
            made += [_marked(one, kind) for one in pairs]
            ctx.counts[f"pairs of kind {kind}"] += len(pairs)
    return made


def bare(trajectory: Trajectory) -> Trajectory:
    """An answer without its tokens, which belong to another prompt."""
    return dataclasses.replace(trajectory, inputs={}, mask=(), logprobs=None)


def _drawn(indices: list[int], ctx: Context, name: str) -> list[int]:
    return sorted(indices, key=lambda i: hashlib.sha256(f"{ctx.seed}/{name}/{i}".encode()).digest())


def _marked(group: Group, kind: str) -> Group:
    """Both rows without tokens, for they may come from two prompts; the kind beside the pair's origin."""
    meta = {**group.prompt.meta, "pair": {**group.prompt.meta["pair"], "kind": kind}}
    return Group(dataclasses.replace(group.prompt, meta=meta), tuple(bare(t) for t in group.trajectories), group.columns)
