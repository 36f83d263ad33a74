"""Advantage piece `group_norm`: rewards standardised within their group (GRPO)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Columns, Context, Group


@piece(reads=("{reward}",), writes=("advantages",), compares=True, paper="arXiv:2402.03300")
def group_norm(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str | list = "reward.reward_model",
    epsilon: Positive = 1e-6,
) -> Columns:
    """(r - mean) / (std + epsilon), one number per trajectory (GRPO, section 4.1.2). std is the sample
    deviation (n - 1), as in common implementations; the paper does not specify it. Equal rewards, and groups
    of one, give exactly 0.
    """
    advantages = []
    for group in groups:
        rewards = rewards_of(group, reward)
        if len(set(rewards)) == 1:
            advantages.append([0.0] * len(rewards))
            continue
        mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
        advantages.append([(r - mean) / (deviation + epsilon) for r in rewards])
    return {"advantages": advantages}
