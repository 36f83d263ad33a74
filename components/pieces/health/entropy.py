"""Health rule: how sure the policy is."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.health import Metrics
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Finite


@piece()
def entropy(history: Sequence[Metrics], *, limit: Finite) -> tuple[bool, float, str]:
    """Entropy in nats per token: trips below `limit`."""
    value = history[-1]["entropy"]
    return value < limit, value, f"entropy is {value:.2f} nats per token; at least {limit:g} allowed"
