"""Reward `exits`: the return of an episode of the environment `doors`."""

from __future__ import annotations

from ratchet.components.piece import each, piece
from ratchet.components.pieces.rewards.environment import measure
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.exits", "reward.exits.status"), paper="arXiv:2402.19446")
@each
def exits(prompt: Prompt, trajectory: Trajectory) -> float:
    """How often the episode left the last room: the environment's measure `exits`. 0 also for an episode
    whose first turn was too long, to which the environment gave no reward. Failed for a trajectory without
    that measure.
    """
    return measure(trajectory, "exits")
