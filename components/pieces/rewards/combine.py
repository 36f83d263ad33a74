"""Rewards computed from other rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Names, NotNegative, Weights
from ratchet.components.types import Columns, Context, Group


@piece(reads=("{rewards}",), writes=("reward.combined",), paper="arXiv:2402.03300")
def combine(
    groups: Sequence[Group], ctx: Context, *, rewards: Names, weights: Weights | None = None
) -> Columns:
    """`reward.combined`: weighted sum of reward columns; default weights are 1."""
    weights = weights if weights is not None else [1.0] * len(rewards)
    return {
        "reward.combined": [
            [
                sum(w * v for w, v in zip(weights, values, strict=True))
                for values in zip(*(rewards_of(group, name) for name in rewards), strict=True)
            ]
            for group in groups
        ]
    }


@piece(reads=("{reward}",), writes=("reward.length_penalised",), paper="arXiv:2405.07863")
def length_penalised(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str = "reward.reward_model",
    penalty: NotNegative = 0.001,
) -> Columns:
    """`reward.length_penalised`: r - penalty x number of answer tokens (RLHF Workflow, section 4.4);
    `penalty` is in reward units per token.
    """
    return {
        "reward.length_penalised": [
            [
                r - penalty * sum(t.mask)
                for r, t in zip(rewards_of(group, reward), group.trajectories, strict=True)
            ]
            for group in groups
        ]
    }


@piece(reads=("{reward}",), writes=("reward.length_controlled",), paper="arXiv:2404.04475")
def length_controlled(
    groups: Sequence[Group], ctx: Context, *, reward: str = "reward.reward_model"
) -> Columns:
    """`reward.length_controlled`: the reward with its linear dependence on log length removed.

    The slope of the reward on log tokens is fitted by least squares over all answers, within prompts (both
    centred by prompt); the result is r - slope x centred log tokens. The idea of the length-controlled win
    rate (Dubois et al., equation 3), for a score.
    """
    rewards = [rewards_of(group, reward) for group in groups]
    logs = [[math.log(max(1, sum(t.mask))) for t in group.trajectories] for group in groups]
    mean = [sum(row) / max(1, len(row)) for row in logs]
    moved = [[x - m for x in row] for row, m in zip(logs, mean, strict=True)]
    spread = sum(x * x for row in moved for x in row)
    slope = (
        sum(x * r for row, rs in zip(moved, rewards, strict=True) for x, r in zip(row, rs, strict=True))
        / spread
        if spread
        else 0.0
    )
    return {
        "reward.length_controlled": [
            [r - slope * x for r, x in zip(rs, row, strict=True)]
            for rs, row in zip(rewards, moved, strict=True)
        ]
    }
