"""Reward `payoff`: the payoff of an action in a bandit or game."""

from __future__ import annotations

from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.payoff", "reward.payoff.status"))
@each
def payoff(prompt: Prompt, trajectory: Trajectory) -> float:
    """The payoff of the whole answer, stripped, by `prompt.meta["payoff"]` (action -> number); 0 for an
    answer that is no action. Failed for a prompt without payoffs.
    """
    known = prompt.meta.get("payoff")
    if not known:
        raise ValueError(f"prompt {prompt.id!r} has no meta['payoff']; use data of the testbed bandit")
    return float(known.get(trajectory.text.strip()) or 0.0)
