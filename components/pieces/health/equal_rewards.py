"""Health rule: how many prompts teach nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.health import Metrics
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Finite


@piece()
def equal_rewards(history: Sequence[Metrics], *, limit: Finite) -> tuple[bool, float, str]:
    """Share of prompts whose answers all have the same reward (no learning signal): trips above `limit`."""
    now = history[-1]
    if "equal_rewards" not in now:  # unscored answers, such as those of the final weights
        return False, 0.0, ""
    return (
        now["equal_rewards"] > limit,
        now["equal_rewards"],
        f"all answers to {now['equal_rewards']:.0%} of the prompts got the same reward "
        f"({now['reward']:.3g} on average), which teaches nothing; at most {limit:.0%} allowed",
    )
