"""Statistics of a certificate: accuracy with its interval, calibration, bias towards length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ratchet.components.data.building import prompt_digest
from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import Interval, wilson
from ratchet.components.evaluation.linear import bradley_terry
from ratchet.components.types import Group, Message

BINS = 10
MATCHED = 0.1
ROUNDING = 1e-9


def conversations_of(pairs: Sequence[Group]) -> int:
    """Number of distinct conversations that the pairs are taken from. Unnamed conversations are identified by
    their first two turns, and by more where these are the prompt's: up to the first turn of the side's own.
    """

    def turns(messages: Sequence[Message]) -> list[str]:
        return [m["content"].strip() for m in messages if m["role"] in ("user", "assistant")]

    found = set()
    for pair in pairs:
        asked = turns(pair.prompt.messages)
        for side in pair.trajectories:
            first = (*asked, *turns(side.messages))[: max(2, len(asked) + 1)]
            found.add(side.meta.get("conversation") or first)
    return len(found)


def prompts_of(pairs: Sequence[Group]) -> list[str]:
    """Of which prompt each pair is: a digest of its messages, or of the pair's number where no user asks."""
    return [
        prompt_digest(pair.prompt.messages)
        if any(m["role"] == "user" for m in pair.prompt.messages)
        else str(number)
        for number, pair in enumerate(pairs)
    ]


def independent(pairs: int, conversations: int) -> int:
    """Effective number of trials of `pairs` comparisons: each takes two conversations, and each conversation
    counts once.
    """
    return max(1, min(pairs, conversations // 2))


def effective_trials(right: np.ndarray, prompts: Sequence[str], most: int) -> int:
    """Effective number of trials, at most `most`, of `right` (N,) in 0..1 if `prompts` (N,) are sampled and
    each brings all its pairs: p (1 − p) over the variance between prompts, times the squared ratio of the
    quantiles of the normal and of Student's distribution (Korn and Graubard, 1998). Without repeated prompts,
    and with one only, `most`.
    """
    from scipy.stats import norm, t

    number = np.unique(np.asarray(prompts), return_inverse=True)[1]
    total, mean = int(number.max()) + 1, float(right.mean())
    if total in (1, len(right)):
        return most
    if mean in (0.0, 1.0):
        return min(most, total)
    variance = total / (total - 1) * float((np.bincount(number, right - mean) ** 2).sum()) / len(right) ** 2
    ratio = float(norm.ppf(0.975) / t.ppf(0.975, total - 1))
    return max(1, int(min(most, ratio**2 * mean * (1 - mean) / variance))) if variance else most


def share(right: float, trials: int) -> Interval:
    """Wilson interval of a share `right` with an effective number of `trials`."""
    return {**wilson(right * trials, trials), "mean": right}


def accuracy(deltas: np.ndarray, most: int | None = None, prompts: Sequence[str] | None = None) -> Interval:
    """Share of pairs whose chosen answer scores higher (ties count half), with an interval over at most
    `most` trials (default: number of pairs), see `effective_trials`.
    """
    right = (deltas > 0) + 0.5 * (deltas == 0)
    most = min(len(right), most or len(right))
    return share(float(right.mean()), most if prompts is None else effective_trials(right, prompts, most))


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


def length_bias(
    deltas: np.ndarray, lengths: np.ndarray, most: int | None = None, prompts: Sequence[str] | None = None
) -> dict[str, Any]:
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
    near = np.flatnonzero(np.abs(gaps) < math.log1p(MATCHED)).tolist()
    score_weight, length_weight = _logistic(deltas, gaps)
    return {
        "longer_preferred": accuracy(gaps, most, prompts),
        "pearson": pearson,
        "spearman": spearman,
        "slope": slope,
        "matched": accuracy(deltas[near], most, prompts and [prompts[i] for i in near])
        if len(near)
        else None,
        "controlled": accuracy(rest, most, prompts),
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
