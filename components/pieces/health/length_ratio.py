"""Health rule: how long answers are."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.health import Metrics, ratio_of
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Above1


@piece()
def length_ratio(history: Sequence[Metrics], *, limit: Above1) -> tuple[bool, float, str]:
    """Mean length against the first round's: trips above `limit` and below 1 / `limit`."""
    first, now = history[0], history[-1]
    ratio = ratio_of(now["length"], first["length"])
    return (
        not 1 / limit <= ratio <= limit,
        ratio,
        f"answers are {ratio:.2f} times as long as in the first round ({now['length']:.1f} against "
        f"{first['length']:.1f} tokens); allowed are {1 / limit:.2f} to {limit:.2f}",
    )
