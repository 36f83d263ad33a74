"""Win rate of the policy against a reference on the same prompts from the scores of a reward model or
measure: raw and length-controlled.

Length control follows "Length-Controlled AlpacaEval" (Dubois et al., 2024, arXiv 2404.04475, equation 3):
logistic regression of the outcome on an intercept and tanh(Δlength / its standard deviation); the
length-controlled win rate is the prediction at Δlength = 0. Their instruction-difficulty term is omitted: it
needs many models, here there are two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import Interval, counts, percentiles, wilson, win_rate

PRIOR = 0.1  # ridge on both coefficients in units of one observation; keeps separable data finite
ITERATIONS = 25

Ragged = Sequence[Sequence[float]]
Scores = Sequence[float] | Ragged


def compare(
    policy: Scores,
    reference: Scores,
    policy_lengths: Scores,
    reference_lengths: Scores,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Any]:
    """{raw, length_controlled: intervals, wins: one per prompt, ties, length_ratio, length_effect, prompts}.

    Each argument has one number per prompt, or a list per prompt with one number per response; the numbers of
    responses may differ between arms. All pairs of a prompt have equal weight, as have all prompts.
    `DataError` if the arms do not match.
    """
    policy, reference, policy_lengths, reference_lengths = map(
        _listed, (policy, reference, policy_lengths, reference_lengths)
    )
    wins = per_prompt(policy, reference)
    outcome, gap, prompt = _pairs(policy, reference, policy_lengths, reference_lengths)
    controlled, effect = length_controlled(outcome, gap, prompt, level=level, resamples=resamples, seed=seed)
    mean_length = [
        float(np.mean([np.mean(row) for row in rows])) for rows in (policy_lengths, reference_lengths)
    ]
    return {
        "raw": win_rate(wins, level=level, seed=seed),
        "length_controlled": controlled,
        "wins": wins.tolist(),
        "length_effect": effect,
        "ties": float((outcome == 0.5).mean()),
        "length_ratio": mean_length[0] / mean_length[1] if mean_length[1] else float("nan"),
        "prompts": len(wins),
    }


def per_prompt(policy: Ragged, reference: Ragged) -> np.ndarray:
    """(N,): share of a prompt's response pairs that the policy wins; ties count half."""
    _matching(policy, reference)
    return np.array([float(_outcomes(p, r).mean()) for p, r in zip(policy, reference, strict=True)])


def length_controlled(
    outcome: np.ndarray,
    gap: np.ndarray,
    prompt: np.ndarray,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[Interval, float]:
    """Win rate at equal length, and the length coefficient, from (M,) outcomes, length differences and prompt
    numbers.

    The interval refits the regression on bootstrap samples of prompts, vectorised over resamples. If these
    are all alike (equal outcomes, or one prompt), it is Wilson's, as in `bootstrap.win_rate`.
    """
    total = int(prompt.max()) + 1
    share = 1 / np.bincount(prompt, minlength=total)[prompt]  # the pairs of a prompt have total weight 1
    spread = float(np.sqrt(np.average((gap - np.average(gap, weights=share)) ** 2, weights=share)))
    x = np.stack([np.ones_like(gap), np.tanh(gap / spread) if spread else np.zeros_like(gap)], 1)
    drawn = np.concatenate([np.ones((1, total)), counts(total, resamples, seed)])
    weights = _fit(x, outcome, drawn[:, prompt] * share)
    rates = 1 / (1 + np.exp(-weights[:, 0]))
    low, high = percentiles(rates[1:], total, level=level)
    mean = float(rates[0])
    if total == 1 or np.ptp(outcome) == 0:
        plain = wilson(min(float((outcome * share).sum()), total), total, level=level)
        low, high = min(plain["low"], mean), max(plain["high"], mean)
    return Interval(mean=mean, low=low, high=high, n=total), float(weights[0, 1])


def _fit(x: np.ndarray, outcome: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Logistic regression by Newton's method, vectorised over the rows of `weight` (R,M): (R,2). A loop over
    `scipy.optimize.minimize`, one fit a row, is no shorter and no faster, and agrees to 3e-8 only.
    """
    beta = np.zeros((len(weight), 2))
    for _ in range(ITERATIONS):
        p = 1 / (1 + np.exp(-np.clip(beta @ x.T, -30, 30)))
        gradient = (weight * (outcome - p)) @ x - PRIOR * beta
        hessian = np.einsum("rm,mi,mj->rij", weight * p * (1 - p), x, x, optimize=True) + PRIOR * np.eye(2)
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        beta += np.clip(step, -2, 2)  # damping: Newton may overshoot far from the optimum
    return beta


def _outcomes(policy: Sequence[float], reference: Sequence[float]) -> np.ndarray:
    delta = np.subtract.outer(np.asarray(policy, float), np.asarray(reference, float))
    if not delta.size or not np.isfinite(delta).all():
        raise DataError(
            f"every prompt needs a finite score for each arm, got {list(policy)} and {list(reference)}"
        )
    return (delta > 0) + 0.5 * (delta == 0)


def _pairs(
    policy: Ragged, reference: Ragged, policy_lengths: Ragged, reference_lengths: Ragged
) -> tuple[np.ndarray, ...]:
    for scores, lengths in ((policy, policy_lengths), (reference, reference_lengths)):
        if [len(row) for row in scores] != [len(row) for row in lengths]:
            raise DataError(
                "scores and lengths must have one number for each response of each prompt; their shapes "
                "differ"
            )
    outcome = [_outcomes(p, r).ravel() for p, r in zip(policy, reference, strict=True)]
    gap = [
        np.subtract.outer(np.asarray(p, float), np.asarray(r, float)).ravel()
        for p, r in zip(policy_lengths, reference_lengths, strict=True)
    ]
    return (
        np.concatenate(outcome),
        np.concatenate(gap),
        np.repeat(np.arange(len(outcome)), [len(o) for o in outcome]),
    )


def _listed(rows: Scores) -> Ragged:
    return [[row] if np.isscalar(row) else row for row in rows]  # type: ignore[misc]


def _matching(policy: Ragged, reference: Ragged) -> None:
    if len(policy) != len(reference) or not len(policy):
        raise DataError(
            f"both arms must answer the same prompts, at least one: got {len(policy)} and "
            f"{len(reference)} prompts"
        )
