"""Schedule `constant`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Finite


@piece()
class Constant:
    """Always `at`."""

    def __init__(self, *, at: Finite) -> None:
        self.at = at

    def value(self) -> float:
        return self.at

    def update(self, metrics: Mapping[str, float]) -> None:
        """No-op."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """No-op."""
