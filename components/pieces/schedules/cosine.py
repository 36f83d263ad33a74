"""Schedule `cosine`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Finite


@piece()
class Cosine:
    """Half cosine from `start` to `end` over `steps` optimizer steps, then `end`."""

    def __init__(self, *, start: Finite, end: Finite, steps: Count) -> None:
        self.start, self.end, self.steps, self.done = start, end, steps, 0

    def value(self) -> float:
        share = min(self.done / max(self.steps, 1), 1.0)
        share = (1 - math.cos(math.pi * share)) / 2
        return self.start + (self.end - self.start) * share

    def update(self, metrics: Mapping[str, float]) -> None:
        self.done += 1

    def state(self) -> dict[str, Any]:
        return {"done": self.done}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.done = state["done"]
