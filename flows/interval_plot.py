"""Small plots of measured claims: an interval as a line of text, and those of several recipes as SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.components.recipes.schema_claim import Claim
from ratchet.flows.claim_records import Verdict

WIDTH = 41
"""Characters of a text plot."""
ROW, LEFT, PLOT, RIGHT = 26, 330, 360, 190
"""Pixels of an SVG plot: height of a row, and widths of the names, the plot and the verdicts."""
COLOURS = {"holds": "#2e7d32", "does not hold": "#c62828", "undecided": "#757575"}


@dataclass(frozen=True)
class Row:
    """A measured difference with its interval, and the bound that the claim says it lies beyond."""

    name: str
    low: float
    mean: float
    high: float
    bound: float
    decision: str


def rows_of(name: str, claim: Claim, verdict: Verdict) -> list[Row]:
    """One row for each baseline that was measured."""
    bound = claim.at_least if claim.direction == "higher" else -claim.at_least
    return [
        Row(f"{name} − {against}", one.low, one.mean, one.high, bound, one.decision)
        for against, one in verdict.comparisons.items()
        if one.low is not None and one.mean is not None and one.high is not None
    ]


def text_bar(row: Row) -> str:
    """The interval `├──●──┤` on a line with 0 (`0`) and the claim's bound (`¦`), and the ends of the axis.

    >>> text_bar(Row("a", 0.1, 0.2, 0.3, 0.0, "holds"))
    '+0 0············├────────────●────────────┤ +0.3'
    """
    first, last = min(row.low, row.bound, 0.0), max(row.high, row.bound, 0.0)
    span = (last - first) or 1.0

    def at(value: float) -> int:
        return round((WIDTH - 1) * (value - first) / span)

    line = ["·"] * WIDTH
    line[at(0.0)] = "0"
    if row.bound:
        line[at(row.bound)] = "¦"
    low, high = at(row.low), at(row.high)
    line[low : high + 1] = [mark if mark in "0¦" else "─" for mark in line[low : high + 1]]
    line[low], line[high] = "├", "┤"
    line[at(row.mean)] = "●"
    return f"{first:+.3g} {''.join(line)} {last:+.3g}"


def svg(rows: Sequence[Row]) -> str:
    """The intervals of several claims, one a row, each divided by its largest absolute end or bound, so that
    rows with other units share the axis -1 to 1. The tick is the claim's bound.
    """
    height = ROW * (len(rows) + 1)
    middle = LEFT + PLOT / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + PLOT + RIGHT}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="100%" height="{height}" fill="white"/>',
        f'<line x1="{middle}" x2="{middle}" y1="4" y2="{height - ROW}" stroke="#bbb"/>',
        f'<text x="{middle}" y="{height - 8}" text-anchor="middle" fill="#555">no difference</text>',
    ]
    for i, row in enumerate(rows):
        y, colour = ROW * i + ROW / 2, COLOURS[row.decision]
        scale = max(abs(row.low), abs(row.high), abs(row.bound)) or 1.0
        low, mean, high, bound = (
            round(middle + PLOT / 2 * value / scale, 1) for value in (row.low, row.mean, row.high, row.bound)
        )
        parts += [
            f'<text x="8" y="{y + 4}">{html.escape(row.name)}</text>',
            f'<line x1="{low}" x2="{high}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
            f'<circle cx="{mean}" cy="{y}" r="4" fill="{colour}"/>',
            f'<line x1="{bound}" x2="{bound}" y1="{y - 7}" y2="{y + 7}" stroke="#333" stroke-dasharray="2"/>',
            f'<text x="{LEFT + PLOT + 12}" y="{y + 4}" fill="{colour}">{row.mean:+.3g} {row.decision}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
