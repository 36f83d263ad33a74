"""Confidence intervals: bootstrap over prompts, Wilson intervals of shares, paired differences.

The prompt is the resampling unit: several answers to one prompt must be averaged first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from ratchet.components.errors import DataError

CHUNK = 2_000_000  # resampled values in memory at once
MOST_RESAMPLES = 2_000_000


class Interval(TypedDict):
    """An estimate from `n` units with a two-sided interval (95 % by default); JSON-serialisable."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(
    values: Sequence[float] | np.ndarray, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Bootstrap percentile interval (Efron, 1979) of the mean of `values` (N,), at the level `expanded`.

    `resamples`: at least so many, and forty in each tail or of the smallest and the largest value. Identical
    values give an interval of width zero; see `win_rate` for shares, and `enough`. `DataError` for no or
    non-finite values.
    """
    from scipy.stats import bootstrap

    data = checked(values)
    if len(data) == 1:
        return Interval(mean=float(data[0]), low=float(data[0]), high=float(data[0]), n=1)
    wide = expanded(level, len(data))
    # With few values the interval reaches from the smallest to the largest: n draws are all one of them with
    # probability n to the power of -n.
    enough_for_ends = 40 * len(data) ** min(len(data), 9)
    needed = min(MOST_RESAMPLES, 80 / max(1 - wide, 1e-9), enough_for_ends)
    found = bootstrap(
        (data,),
        np.mean,
        n_resamples=max(resamples, math.ceil(needed)),
        confidence_level=wide,
        method="percentile",
        batch=max(1, CHUNK // len(data)),
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(mean=float(data.mean()), low=float(found.low), high=float(found.high), n=len(data))


def difference(
    arm: Sequence[float] | np.ndarray,
    other: Sequence[float] | np.ndarray,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Interval of the mean of arm − other, paired by prompt (same prompts, same order)."""
    a, b = checked(arm), checked(other)
    if len(a) != len(b):
        raise DataError(
            f"a paired difference needs the same prompts in both arms; got {len(a)} and {len(b)} values"
        )
    return mean_interval(a - b, level=level, resamples=resamples, seed=seed)


def win_rate(
    wins: Sequence[float] | np.ndarray, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Mean of per-prompt wins (1 won, 0 lost, 0.5 tied, or means of these) with a bootstrap interval.

    If all values are equal, the bootstrap would give width zero; Wilson's interval is used instead, so three
    wins of three are not reported as certain.
    """
    data = checked(wins)
    if data.min() < 0 or data.max() > 1:
        raise DataError(f"wins must lie in 0..1, got {data.min():g}..{data.max():g}")
    if np.ptp(data) == 0:
        return wilson(float(data.sum()), len(data), level=level)
    return mean_interval(data, level=level, resamples=resamples, seed=seed)


def enough(units: float, *, level: float = 0.95) -> bool:
    """Whether an interval of `units` units can be evidence: by chance alone all of them lie on one side of a
    bound with probability 2^-units, and then so does their bootstrap interval.
    """
    return 2.0**-units <= (1 - level) / 2


def expanded(level: float, units: int) -> float:
    """Level at which a bootstrap percentile interval of the mean of `units` numbers covers as often as
    `level` says (Hesterberg, 2015, "What teachers should know about the bootstrap", section 4.3): of 8
    numbers, one of 97.5 % would lie above 0 in 4 % of comparisons without an effect, instead of 1.25 %.
    """
    from scipy.stats import norm, t

    if units < 2:
        return level
    return 1 - 2 * float(norm.sf(math.sqrt(units / (units - 1)) * t.isf((1 - level) / 2, units - 1)))


def percentiles(drawn: np.ndarray, units: int, *, level: float = 0.95) -> tuple[float, float]:
    """Ends of the bootstrap percentile interval at the level `expanded`, from a statistic of resamples (R,)
    of `units` units; NaN is left out.
    """
    tail = (1 - expanded(level, units)) / 2
    low, high = np.nanquantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


def wilson(successes: float, trials: int, *, level: float = 0.95) -> Interval:
    """Wilson score interval (1927) of a share; half successes (ties) are allowed."""
    from scipy.stats import norm

    if trials < 1 or not 0 <= successes <= trials:
        raise DataError(
            f"a share needs 0 <= successes <= trials and at least one trial, got {successes} of {trials}"
        )
    z, share = float(norm.ppf((1 + level) / 2)), successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * (share * (1 - share) / trials + z * z / (4 * trials * trials)) ** 0.5
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Interval(mean=share, low=min(low, share), high=max(high, share), n=trials)  # despite rounding


def counts(units: int, resamples: int, seed: int) -> np.ndarray:
    """Bootstrap weights (resamples, units): how often each unit is drawn."""
    return np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=resamples)


def checked(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The values (N,) as an array. `DataError` for none, and for one that is not finite."""
    data = np.asarray(values, dtype=float)
    if data.ndim != 1 or not len(data):
        raise DataError(f"an interval needs a list of at least one number, got shape {data.shape}")
    if not np.isfinite(data).all():
        raise DataError(
            f"{int((~np.isfinite(data)).sum())} of {len(data)} values are not finite; find the cause "
            "before averaging"
        )
    return data
