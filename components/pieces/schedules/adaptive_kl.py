"""Schedule `adaptive_kl`: a coefficient controlled to keep the KL near a target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import NotNegative, Positive


@piece(paper="arXiv:1909.08593")
class AdaptiveKl:
    """beta <- beta (1 + gain clip(kl / target - 1, -0.2, 0.2)) after every step (Ziegler et al., section
    2.2). `target`: in nats of the metric `metric`, a name in the step's log (`role/label/metric`);
    `RecipeError` if it does not exist; a step without a row of it changes nothing.
    """

    def __init__(
        self,
        *,
        target: Positive,
        initial: Positive = 0.2,
        gain: NotNegative = 0.1,
        metric: str = "policy/kl/kl",
    ) -> None:
        self.target, self.gain, self.metric, self.beta = target, gain, metric, initial

    def value(self) -> float:
        return self.beta

    def update(self, metrics: Mapping[str, float]) -> None:
        if self.metric not in metrics:
            raise RecipeError(
                "schedule adaptive_kl: no objective reports its metric "
                f"{self.metric!r}{nearest(self.metric, metrics)}"
            )
        if math.isnan(metrics[self.metric]):
            return
        error = min(max(metrics[self.metric] / self.target - 1, -0.2), 0.2)
        self.beta *= 1 + self.gain * error

    def state(self) -> dict[str, Any]:
        return {"beta": self.beta}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.beta = state["beta"]
