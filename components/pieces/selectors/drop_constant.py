"""Selector `drop_constant`: drops groups without learning signal."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), compares=True, paper="arXiv:2503.14476")
def drop_constant(
    groups: Sequence[Group], ctx: Context, *, reward: str = "reward.reward_model"
) -> list[Group]:
    """The groups whose rewards are not all equal; equal rewards give zero advantage (DAPO's dynamic sampling,
    eq. 11, without resampling).
    """
    varied = [group for group in groups if len(set(rewards_of(group, reward))) > 1]
    ctx.counts["groups of equal rewards"] += len(groups) - len(varied)
    return varied
