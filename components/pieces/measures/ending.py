"""Measure `ending`: whether an answer ends with the end-of-turn token."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece()
def ending(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    """1 if the policy emitted its end-of-turn token, 0 if the answer was truncated at the token limit."""
    return [[float(t.stop == "end") for t in group.trajectories] for group in groups]
