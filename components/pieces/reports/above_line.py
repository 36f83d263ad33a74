"""Report `above_line`: an interpolated model against the straight line between its ends."""

from __future__ import annotations

from ratchet.components.evaluation.bootstrap import Interval, mean_interval
from ratchet.components.evaluation.results import Scored
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Share


@piece(compares=True, paper="arXiv:2410.16476")
def above_line(
    scored: Scored, *, arm: str, other: str, third: str, measure: str, share: Share = 0.5
) -> Interval:
    """Mean of `measure` in `arm` minus (1 - share) times that in `other` and `share` times that in `third`,
    on the same prompts. Above 0: a model whose weights lie between two models is better than mixing their
    results. Below 0: the failure of interpolation of section 3.
    """
    rows = scored.paired((arm, other, third), measure)
    return mean_interval([m - (1 - share) * a - share * b for m, a, b in zip(*rows, strict=True)])
