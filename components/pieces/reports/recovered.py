"""Report `recovered`: how much of a loss another way of asking brings back."""

from __future__ import annotations

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import Interval, counts, percentiles
from ratchet.components.evaluation.results import Scored
from ratchet.components.piece import piece


@piece(compares=True, paper="arXiv:2309.10105")
def recovered(scored: Scored, *, arm: str, other: str, third: str, measure: str) -> Interval:
    """(arm - other) / (third - other) of the means of `measure` on the same prompts: the share of what
    `other` (the tuned model) lost against `third` (the model before) that `arm` brings back. Bootstrap over
    prompts. `DataError` if `other` lost nothing.
    """
    rows = np.array(scored.paired((arm, other, third), measure))
    mean = rows.mean(1)
    if mean[2] <= mean[1]:
        raise DataError(
            f"report recovered: {other!r} has {mean[1]:.3g} of {measure!r}, no less than {third!r} "
            f"({mean[2]:.3g}): nothing was lost that could be recovered"
        )
    drawn = counts(rows.shape[1], 2000, 0) @ rows.T / rows.shape[1]
    lost = drawn[:, 2] - drawn[:, 1]
    shares = (drawn[:, 0] - drawn[:, 1])[lost > 0] / lost[lost > 0]
    low, high = percentiles(shares, rows.shape[1])
    return Interval(
        mean=float((mean[0] - mean[1]) / (mean[2] - mean[1])),
        low=low,
        high=high,
        n=rows.shape[1],
    )
