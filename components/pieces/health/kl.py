"""Health rule: how far the policy has moved."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.health import Metrics
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Finite


@piece()
def kl(history: Sequence[Metrics], *, limit: Finite) -> tuple[bool, float, str]:
    """KL to the initial policy in nats per sequence: trips above `limit`. It needs `watch.kl_prompts`."""
    value = history[-1]["kl"]
    return (
        value > limit,
        value,
        f"KL to the initial policy is {value:.2f} nats per sequence; at most {limit:g} allowed",
    )
