"""How much an answer repeats itself."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.diversity import repetition as repeated
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece()
def repetition(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    """Share of the words and marks of an answer that it has used before, 0 to 1."""
    return [[repeated(t.text) for t in group.trajectories] for group in groups]
