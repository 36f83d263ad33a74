"""Advantage piece `whiten`: rewards standardised over the whole round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Columns, Context, Group


@piece(reads=("{reward}",), writes=("advantages",), paper="arXiv:2501.03262")
def whiten(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str | list = "reward.reward_model",
    epsilon: Positive = 1e-8,
) -> Columns:
    """(r - mean) / (std + epsilon) over all trajectories of the round, one number per trajectory: the global
    normalisation of REINFORCE++ (section 3). Sample deviation (n - 1); exactly 0 if all rewards are equal.
    """
    rewards = [rewards_of(group, reward) for group in groups]
    every = [r for row in rewards for r in row]
    if len(set(every)) < 2:
        return {"advantages": [[0.0] * len(row) for row in rewards]}
    mean, deviation = statistics.fmean(every), statistics.stdev(every)
    return {"advantages": [[(r - mean) / (deviation + epsilon) for r in row] for row in rewards]}
