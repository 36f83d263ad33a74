"""Selector `threshold`: answers with a minimum reward."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Finite
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), makes="answers", paper="arXiv:2308.08998")
def threshold(
    groups: Sequence[Group], ctx: Context, *, reward: str = "reward.reward_model", at_least: Finite = 0.0
) -> list[Group]:
    """The answers with a reward of at least `at_least` (filter of ReST, section 3); empty groups are
    dropped.
    """
    kept = []
    for group in groups:
        good = [i for i, value in enumerate(rewards_of(group, reward)) if value >= at_least]
        ctx.counts["answers under at_least"] += len(group.trajectories) - len(good)
        if good:
            kept.append(group.take(good))
    return kept
