"""Verdicts on claims: intervals of a difference between two recipes, over seeds and prompts, and the decision
from them.

A difference is measured for several seeds, either per held-out prompt (a matrix of seeds × prompts) or as one
number per seed. Seeds are added while the claim is undecided. Each look at the data has its own share of the
error rate (alpha spending), so the probability of a wrong decision over all looks is at most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ratchet.components.errors import DataError

Decision = Literal["holds", "does not hold", "undecided"]
ALPHA = 0.05
"""Two-sided error rate over all looks: a 95 % interval if there is one look."""
MIN_SEEDS = 3
"""With fewer seeds every claim is undecided."""


@dataclass(frozen=True)
class Effect:
    """A mean difference, own minus baseline, with its two-sided interval at confidence `level`. `spread` is
    False if all seeds gave the same number, so that their variance is unknown rather than zero.
    """

    mean: float
    low: float
    high: float
    level: float
    seeds: int
    spread: bool = True


def spent(number: int, alpha: float = ALPHA) -> float:
    """Error rate of the `number`-th comparison (from 1): alpha / (k (k + 1)), which sums to alpha over all k
    (Foster & Stine, 2008; Tian & Ramdas, arXiv:1910.04900).
    """
    return alpha / (number * (number + 1))


def level_of(look: int, looks: int, alpha: float = ALPHA) -> float:
    """Confidence level of look `look` (from 1) of at most `looks`. The error rates of all looks sum to alpha:
    `spent`, scaled by (K + 1) / K.
    """
    return 1 - spent(look, alpha) * (looks + 1) / looks


def looks(first: int, most: int) -> list[int]:
    """Numbers of seeds at which the data are looked at: from `first` in steps of about 60 % to `most`.

    >>> looks(3, 8)
    [3, 5, 8]
    """
    counts = [first]
    while counts[-1] < most:
        counts.append(min(most, math.ceil(counts[-1] * 1.6)))
    return counts


def crossed(differences: np.ndarray | Sequence[Sequence[float]], level: float = 1 - ALPHA) -> Effect:
    """Mean of `differences` (seeds, prompts) with an interval for new seeds and new prompts.

    Both factors are random. The squared standard error is the sum of those over seed means and over prompt
    means, which counts their interaction twice and so is never too small on average. Degrees of freedom are
    Satterthwaite's (1946). With one seed it is the paired t-interval over prompts. `DataError` for ragged or
    non-finite values.
    """
    matrix = _matrix(differences)
    seeds, prompts = matrix.shape
    parts = [
        (means.var(ddof=1) / len(means), len(means) - 1)
        for means in (matrix.mean(1), matrix.mean(0))
        if len(means) > 1
    ]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / count for part, count in parts) if variance else 1.0
    if not parts:
        raise DataError(f"an interval needs several seeds or prompts, got {seeds} and {prompts}")
    return _t_interval(float(matrix.mean()), float(variance), float(freedom), level, seeds)


def over_seeds(differences: Sequence[float] | np.ndarray, level: float = 1 - ALPHA) -> Effect:
    """Mean of one difference per seed with the t-interval over seeds (Student, 1908). Numbers in steps, such
    as a share of 32 prompts, may be equal by chance; then `spread` is False.
    """
    values = _matrix([[float(one) for one in differences]])[0]
    if len(values) < 2:
        raise DataError("an interval over seeds needs at least two seeds, got 1")
    effect = _t_interval(
        float(values.mean()), float(values.var(ddof=1)) / len(values), len(values) - 1.0, level, len(values)
    )
    if np.allclose(values, values[0], rtol=0, atol=1e-12):
        return replace(effect, low=effect.mean, high=effect.mean, spread=False)
    return effect


def decide(effect: Effect, direction: Literal["higher", "lower"], at_least: float) -> Decision:
    """`holds` if the whole interval lies beyond `at_least` in the claimed direction, `does not hold` if it
    lies short of it, `undecided` if it contains it, there are fewer than `MIN_SEEDS` seeds, or these have no
    `spread`.
    """
    low, high = (effect.low, effect.high) if direction == "higher" else (-effect.high, -effect.low)
    if effect.seeds < MIN_SEEDS or not effect.spread:
        return "undecided"
    if low > at_least:
        return "holds"
    return "does not hold" if high < at_least else "undecided"


def together(decisions: Sequence[Decision]) -> Decision:
    """Decision on a claim against several baselines: it holds if it holds against each one.

    Each is tested at the full error rate: all must be rejected, so the error rate of their conjunction is no
    larger (intersection-union test; Berger, 1982).
    """
    if "does not hold" in decisions:
        return "does not hold"
    return "undecided" if "undecided" in decisions else "holds"


def _t_interval(mean: float, variance: float, freedom: float, level: float, seeds: int) -> Effect:
    from scipy.stats import t

    half = float(t.ppf((1 + level) / 2, freedom)) * math.sqrt(variance) if variance > 0 else 0.0
    return Effect(mean, mean - half, mean + half, level, seeds)


def _matrix(values: np.ndarray | Sequence[Sequence[float]]) -> np.ndarray:
    lengths = sorted({len(row) for row in values})
    if len(lengths) != 1 or not lengths[0]:
        raise DataError(f"a difference needs the same prompts for every seed, got {lengths} of them")
    matrix = np.asarray(values, dtype=float)
    if not np.isfinite(matrix).all():
        raise DataError(f"{int((~np.isfinite(matrix)).sum())} of {matrix.size} differences are not finite")
    return matrix
