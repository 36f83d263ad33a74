"""Health rule: how many answers are cut."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.health import Metrics
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Finite


@piece()
def truncated(history: Sequence[Metrics], *, limit: Finite) -> tuple[bool, float, str]:
    """Share of answers cut by the token limit: trips above `limit`."""
    value = history[-1]["truncated"]
    return value > limit, value, f"{value:.0%} of the answers were cut; at most {limit:.0%} allowed"
