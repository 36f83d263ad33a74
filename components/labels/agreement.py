"""Agreement between annotators: Krippendorff's alpha for nominal categories, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from ratchet.components.evaluation.bootstrap import Interval, counts, percentiles


def category_counts(ratings: Iterable[Sequence[Hashable]]) -> np.ndarray:
    """(U, C): how often each category was assigned to each unit. `ratings` has the categories that a unit's
    annotators assigned, one list a unit; missing ratings are left out.
    """
    rows = [list(row) for row in ratings]
    names = {name: column for column, name in enumerate(dict.fromkeys(one for row in rows for one in row))}
    table = np.zeros((len(rows), len(names)))
    for unit, row in enumerate(rows):
        for one in row:
            table[unit, names[one]] += 1
    return table


def krippendorff_alpha(table: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Nominal alpha (Krippendorff, Computing Krippendorff's Alpha-Reliability, 2011) of a table (U, C) of
    category counts: 1 is perfect agreement, 0 that of chance. Units with fewer than two ratings do not count.

    `weights` (R, U) gives R alphas, (R,), with each unit counted that often. NaN where nothing disagrees
    because there is one category or no unit: alpha is then undefined.
    """
    ratings = table.sum(1)
    paired = ratings >= 2
    table, ratings = table[paired], ratings[paired]
    weights = np.ones((1, len(table))) if weights is None else weights[:, paired]
    disagreement = (ratings**2 - (table**2).sum(1)) / (ratings - 1)
    totals = weights @ table
    number = totals.sum(1)
    expected = (number**2 - (totals**2).sum(1)) / np.maximum(number - 1, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(expected > 0, 1 - (weights @ disagreement) / expected, np.nan)


def alpha_interval(
    table: np.ndarray, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval | None:
    """Alpha with a percentile bootstrap interval over units; `n` is the number of units with two or more
    ratings. None if alpha is undefined. The interval is about these annotators: they are not resampled.
    """
    table = table[table.sum(1) >= 2]
    value = krippendorff_alpha(table)[0] if len(table) else np.nan
    if np.isnan(value):
        return None
    drawn = krippendorff_alpha(table, counts(len(table), resamples, seed))
    low, high = percentiles(drawn, len(table), level=level)
    return Interval(mean=float(value), low=low, high=high, n=len(table))
