"""Health rule: a gold score that falls."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.evaluation.health import Metrics
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Finite


@piece(paper="arXiv:2210.10760")
def gold_drop(history: Sequence[Metrics], *, limit: Finite) -> tuple[bool, float, str]:
    """Late over-optimisation: the gold score fell below its best round by more than `limit`, whatever the
    reward does.

    The rounds have prompts of their own, so the fall must also be larger than the half width of its 95 %
    interval: by one standard error, and from the best of the rounds, every third run of three rounds would be
    rolled back by chance.
    """
    best, now = max(history, key=_gold), history[-1]
    fall = best["gold"] - now["gold"]
    reach = 1.96 * math.hypot(best["gold.error"], now["gold.error"])
    return (
        fall > max(limit, reach),
        fall,
        f"the gold score is {fall:.3g} [{fall - reach:.3g}, {fall + reach:.3g}] below the best round's; "
        f"allowed is {limit:g}",
    )


def _gold(metrics: Metrics) -> float:
    gold = metrics.get("gold", math.nan)
    return gold if math.isfinite(gold) else -math.inf
