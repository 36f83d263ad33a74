"""Report `correlation`: whether one number of the arms predicts another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import Interval, counts, percentiles
from ratchet.components.evaluation.results import Scored
from ratchet.components.piece import piece


@piece(paper="arXiv:2311.00168")
def correlation(scored: Scored, *, of: str, to: str, arms: Sequence[str] = ()) -> Interval:
    """Spearman's rank correlation, over arms, of the means of `of` and `to`: of a trained reward and a
    downstream measure over checkpoints, or of sharpness and accuracy along an interpolation. The interval
    resamples the prompts of each split, of which it counts the smallest number; it does not say how other
    arms would be correlated. `arms`: empty for all.
    """
    chosen = list(arms) or list(scored.splits)
    if len(chosen) < 3:
        raise DataError(f"report correlation: expected 3 arms or more, got {len(chosen)}")
    rows = {name: {arm: np.asarray(scored.by_prompt(arm)[name]) for arm in chosen} for name in (of, to)}
    drawn = {split: counts(len(rows[of][arm]), 500, 0) for arm in chosen for split in [scored.splits[arm]]}
    means = {
        name: np.stack([drawn[scored.splits[a]] @ by[a] / len(by[a]) for a in chosen], 1)
        for name, by in rows.items()
    }
    values = [spearman(x, y) for x, y in zip(means[of], means[to], strict=True)]
    mean = spearman(*([by[arm].mean() for arm in chosen] for by in rows.values()))
    prompts = min(len(row) for row in rows[of].values())
    low, high = percentiles(np.array(values), prompts)
    return Interval(mean=mean, low=min(low, mean), high=max(high, mean), n=prompts)


def spearman(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """Correlation of the ranks, ties share their mean rank; 0 if one side is constant.

    >>> spearman([1, 2, 3, 4], [10, 30, 20, 40])
    0.8
    """
    from scipy.stats import rankdata

    a, b = rankdata(x), rankdata(y)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1].round(12))
