"""Advantage piece `centre`: reward minus group mean."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.types import Columns, Context, Group


@piece(reads=("{reward}",), writes=("advantages",), compares=True, paper="arXiv:2503.20783")
def centre(groups: Sequence[Group], ctx: Context, *, reward: str | list = "reward.reward_model") -> Columns:
    """r - mean(group), one number per trajectory (Dr. GRPO, eq. 3: GRPO without division by the standard
    deviation).
    """
    advantages = []
    for group in groups:
        rewards = rewards_of(group, reward)
        mean = sum(rewards) / len(rewards)
        advantages.append([r - mean for r in rewards])
    return {"advantages": advantages}
