"""Counts of a labelling queue and of one annotator."""

from __future__ import annotations

from dataclasses import dataclass

RECENT = 20
"""Labels whose median time is the pace."""


@dataclass(frozen=True)
class Progress:
    """`mine`: labels of an annotator; `wanted`: labels on ordinary items that the queue asks for; `judged`:
    how many of those there are, without skips and without further annotators' labels on common items;
    `pace`: median seconds of the annotator's newest labels, None without any.
    """

    mine: int
    judged: int
    wanted: int
    pace: float | None
