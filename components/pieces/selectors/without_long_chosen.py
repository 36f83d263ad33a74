"""Selector `without_long_chosen`: pairs whose chosen answer is not much longer than the rejected one."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Context, Group


@piece(compares=True, paper="arXiv:2501.12368")
def without_long_chosen(groups: Sequence[Group], ctx: Context, *, ratio: Positive = 1.5) -> list[Group]:
    """The pairs whose chosen answer has at most `ratio` times the characters of the rejected one (the length
    constraint of IXC-2.5-Reward, which gives no number). Pairs whose rejected answer is longer stay, by
    however much, so that too low a ratio reverses the bias instead of removing it.
    """
    kept = [group for group in groups if _length(group, 0) <= ratio * _length(group, 1)]
    ctx.counts["pairs with a much longer chosen answer"] += len(groups) - len(kept)
    return kept


def _length(group: Group, which: int) -> int:
    return len(group.trajectories[which].text)
