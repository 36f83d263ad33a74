"""Schedule `anneal`: from one value to another, linearly or along a half cosine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Finite


@piece()
class Anneal:
    """From `start` to `end` over `steps` optimizer steps, then `end`. `shape`: linear, or cosine annealing
    (slow at both ends).
    """

    def __init__(
        self, *, start: Finite, end: Finite, steps: Count, shape: Literal["linear", "cosine"] = "linear"
    ) -> None:
        self.start, self.end, self.steps, self.shape, self.done = start, end, steps, shape, 0

    def value(self) -> float:
        share = min(self.done / self.steps, 1.0)
        return self.start + (self.end - self.start) * (
            share if self.shape == "linear" else (1 - math.cos(math.pi * share)) / 2
        )

    def update(self, metrics: Mapping[str, float]) -> None:
        self.done += 1

    def state(self) -> dict[str, Any]:
        return {"done": self.done}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.done = state["done"]
