"""Selector `preference_strength`: corrects labels that an ensemble of reward models contradicts."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.pieces.selectors.pairs import part
from ratchet.components.recipes.ranges import Share
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), writes=("margin",), paper="arXiv:2401.06080")
def preference_strength(
    groups: Sequence[Group], ctx: Context, *, reward: str = "reward.ensemble", flip: Share = 0.1
) -> list[Group]:
    """The pairs with `margin` = their preference strength, reward of the chosen minus reward of the rejected
    answer (Secrets of RLHF II, equation 3: the mean over reward models that differ by seed), where the `flip`
    of the pairs with the lowest strength, rounded down, have changed sides, if their strength is negative. A
    pair that changed sides has the strength -margin. A margin is at least 0.
    """
    strengths = [(values := rewards_of(group, reward))[0] - values[1] for group in groups]
    ranked = sorted(range(len(groups)), key=strengths.__getitem__)
    swapped = {i for i in ranked[: int(part(groups, flip))] if strengths[i] < 0}
    ctx.counts["labels corrected"] += len(swapped)
    changed = []
    for i, (group, strength) in enumerate(zip(groups, strengths, strict=True)):
        pair = group.take([1, 0]) if i in swapped else group
        changed.append(pair.with_columns(margin=[abs(strength) if i in swapped else max(0.0, strength)] * 2))
    return changed
