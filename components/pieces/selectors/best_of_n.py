"""Selector `best_of_n`: the best answers of each prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), makes="answers", paper="arXiv:2304.06767")
def best_of_n(
    groups: Sequence[Group], ctx: Context, *, reward: str = "reward.reward_model", keep: Count = 1
) -> list[Group]:
    """The `keep` answers with the highest reward of each prompt, best first (RAFT); ties go to the earlier
    sample.
    """
    made = []
    for group in groups:
        values = rewards_of(group, reward)
        ctx.counts["answers that are not the best"] += max(0, len(values) - keep)
        made.append(group.take(sorted(range(len(values)), key=lambda i: -values[i])[:keep]))
    return made
