"""Advantage piece `leave_one_out`: reward minus the mean of the other rewards in the group (RLOO)."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.types import Columns, Context, Group


@piece(reads=("{reward}",), writes=("advantages",), compares=True, paper="arXiv:2402.14740")
def leave_one_out(
    groups: Sequence[Group], ctx: Context, *, reward: str | list = "reward.reward_model"
) -> Columns:
    """r_i - mean of the other rewards of the group, one number per trajectory (RLOO, eq. 8). 0 for a group of
    one (our convention).
    """
    advantages = []
    for group in groups:
        rewards = rewards_of(group, reward)
        total, others = sum(rewards), max(len(rewards) - 1, 1)
        advantages.append([r - (total - r) / others if len(rewards) > 1 else 0.0 for r in rewards])
    return {"advantages": advantages}
