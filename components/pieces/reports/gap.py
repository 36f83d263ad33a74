"""Report `gap`: difference of two arms, such as in and out of distribution."""

from __future__ import annotations

import math

from ratchet.components.evaluation.bootstrap import Interval, difference, mean_interval
from ratchet.components.evaluation.results import Scored
from ratchet.components.piece import piece


@piece(paper="arXiv:2310.06452")
def gap(scored: Scored, *, arm: str, other: str, measure: str) -> Interval:
    """Mean of `measure` in `arm` minus that in `other`. With one model on a split of the training
    distribution and on a shifted one it is the generalisation gap. Arms on the same prompts are paired;
    otherwise the half-widths of their intervals are added in quadrature.
    """
    mine, theirs = (scored.by_prompt(name)[measure] for name in (arm, other))
    if scored.splits[arm] == scored.splits[other]:
        return difference(mine, theirs)
    a, b = mean_interval(mine), mean_interval(theirs)
    mean = a["mean"] - b["mean"]
    return Interval(
        mean=mean,
        low=mean - math.hypot(a["mean"] - a["low"], b["high"] - b["mean"]),
        high=mean + math.hypot(a["high"] - a["mean"], b["mean"] - b["low"]),
        n=a["n"] + b["n"],
    )
