"""Measure `repetition`: self-repetition of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.diversity import repetition as repeated
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece()
def repetition(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    """Share of words and punctuation marks that occurred earlier in the answer, 0 to 1."""
    return [[repeated(t.text) for t in group.trajectories] for group in groups]
