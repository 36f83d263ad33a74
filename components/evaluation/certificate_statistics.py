"""Statistics of a certificate: accuracy with its interval, calibration, bias towards length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import Interval, wilson
from ratchet.components.evaluation.linear import bradley_terry

BINS = 10
MATCHED = 0.1
ROUNDING = 1e-9


def independent(pairs: int, conversations: int) -> int:
    """Effective number of trials of `pairs` comparisons: each takes two conversations, and each conversation
    counts once.
    """
    return max(1, min(pairs, conversations // 2))


def share(right: float, trials: int) -> Interval:
    """Wilson interval of a share `right` with an effective number of `trials`."""
    return {**wilson(right * trials, trials), "mean": right}


def accuracy(deltas: np.ndarray, trials: int | None = None) -> Interval:
    """Share of pairs whose chosen answer scores higher (ties count half), with an interval over `trials`
    (default: number of pairs).
    """
    return share(float(((deltas > 0) + 0.5 * (deltas == 0)).mean()), min(len(deltas), trials or len(deltas)))


def calibration(deltas: np.ndarray, bins: int = BINS) -> tuple[float, list[dict[str, float]]]:
    """Expected calibration error (Guo et al., 2017) and its reliability bins.

    All pairs are chosen-first, so the prediction is folded: confidence σ(|Δ|) in 0.5..1 that the
    higher-scored answer is preferred, correct if Δ > 0. Bins have equal width; empty bins are omitted.
    """
    confidence, right = sigmoid(np.abs(deltas)), (deltas > 0) + 0.5 * (deltas == 0)
    place = np.minimum(((confidence - 0.5) * 2 * bins).astype(int), bins - 1)
    table = [
        {
            "confidence": float(confidence[place == b].mean()),
            "accuracy": float(right[place == b].mean()),
            "pairs": int((place == b).sum()),
        }
        for b in np.unique(place)
    ]
    return float(sum(r["pairs"] * abs(r["confidence"] - r["accuracy"]) for r in table) / len(deltas)), table


def length_bias(deltas: np.ndarray, lengths: np.ndarray, trials: int | None = None) -> dict[str, Any]:
    """How much of the human preference and of the model's scores is explained by length.

    Correlations are of (Δscore, Δlog length), mirrored about zero since the order in a pair is arbitrary.
    `matched`: accuracy on pairs whose lengths differ by less than 10 %. `controlled`: accuracy after removing
    the scores' best linear fit on Δlog length. `coefficients`: logistic regression of the human choice on
    both, standardised; the score's coefficient is its effect at equal length.
    """
    from scipy.stats import spearmanr

    if lengths.shape != (len(deltas), 2) or (lengths < 0).any():
        raise DataError(
            f"a certificate needs two lengths per pair, got shape {lengths.shape} for {len(deltas)} pairs"
        )
    gaps = np.log1p(lengths[:, 0]) - np.log1p(lengths[:, 1])
    energy = float((gaps**2).sum())
    slope = float((deltas * gaps).sum()) / energy if energy else 0.0
    varied = energy > 0 and np.ptp(np.abs(deltas)) + np.abs(deltas).max() > 0
    pearson = float((deltas * gaps).sum() / math.sqrt((deltas**2).sum() * energy)) if varied else 0.0
    spearman = float(spearmanr(np.r_[deltas, -deltas], np.r_[gaps, -gaps]).statistic) if varied else 0.0  # pyright: ignore[reportAttributeAccessIssue]
    rest = deltas - slope * gaps
    rest[np.abs(rest) <= ROUNDING * np.abs(deltas).max()] = 0.0  # scores that are only length: ties
    near = np.abs(gaps) < math.log1p(MATCHED)
    score_weight, length_weight = _logistic(deltas, gaps)
    return {
        "longer_preferred": accuracy(gaps, trials),
        "pearson": pearson,
        "spearman": spearman,
        "slope": slope,
        "matched": accuracy(deltas[near], trials) if near.any() else None,
        "controlled": accuracy(rest, trials),
        "coefficients": {"score": score_weight, "length": length_weight},
    }


def _logistic(deltas: np.ndarray, gaps: np.ndarray) -> tuple[float, float]:
    """P(chosen) = σ(a Δscore + b Δlog length), without intercept (swapping a pair mirrors it) and with a weak
    ridge (the fit always exists).
    """
    x = np.stack([column / (np.sqrt((column**2).mean()) or 1.0) for column in (deltas, gaps)], 1)
    a, b = bradley_terry(x, 0.1 / len(x))
    return float(a), float(b)


def sigmoid(x: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    return expit(x)
