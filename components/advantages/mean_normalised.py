"""The centred reward divided by the group's mean reward."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.advantages.read import rewards_of
from ratchet.components.piece import piece
from ratchet.components.types import Columns, Context, Group


@piece(reads=("{reward}",), writes=("advantages",), compares=True, paper="arXiv:2602.02710")
def mean_normalised(groups: Sequence[Group], ctx: Context, *, reward: str | list = "reward.judge") -> Columns:
    """(r - mean) / mean, a number a trajectory: MaxRL, for rewards of 0 or 1, where a rare success weighs more. A group whose mean
    is 0 has nothing to learn from: 0. Other rewards are our extension: a negative mean counts by its size.
    """
    advantages = []
    for group in groups:
        rewards = rewards_of(group, reward)
        mean = sum(rewards) / len(rewards)
        advantages.append([(r - mean) / abs(mean) if mean else 0.0 for r in rewards])
    return {"advantages": advantages}
