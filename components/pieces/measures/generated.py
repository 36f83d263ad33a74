"""Measure `generated`: cost of an answer in generated tokens, with those of a search that were rejected."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece(paper="arXiv:2406.03816")
def generated(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    """Tokens that were generated for an answer: those of the whole tree for one of `tree_search`, its own
    for another.
    """
    return [[float(t.meta.get("generated", sum(t.mask))) for t in g.trajectories] for g in groups]


@piece(paper="arXiv:2406.03816")
def values(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    """Number of states that a value model read for an answer; 0 without a search."""
    return [[float(t.meta.get("valued", 0)) for t in g.trajectories] for g in groups]
