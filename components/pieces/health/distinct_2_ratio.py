"""Health rule: how varied answers are."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.health import Metrics, ratio_of
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Finite


@piece()
def distinct_2_ratio(history: Sequence[Metrics], *, limit: Finite) -> tuple[bool, float, str]:
    """Share of distinct word pairs against the first round's: trips below `limit`."""
    ratio = ratio_of(history[-1]["distinct_2"], history[0]["distinct_2"])
    return (
        ratio < limit,
        ratio,
        f"the share of distinct word pairs fell to {ratio:.2f} of the first round's; at least {limit:g} "
        "allowed",
    )
