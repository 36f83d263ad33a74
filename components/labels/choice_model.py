"""Conditional logit (McFadden, 1974): which of several answers is chosen, given features of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np

RIDGE = 1e-3
"""Penalty on the squared coefficients: keeps them finite if a feature decides every choice."""


class Effect(TypedDict):
    """A coefficient (change of log-odds per unit of the feature) with a 95 % Wald interval and p-value."""

    mean: float
    low: float
    high: float
    n: int
    p: float


def conditional_logit(
    rows: Sequence[tuple[np.ndarray, int]], names: Sequence[str], *, ridge: float = RIDGE
) -> Mapping[str, Effect]:
    """P(answer i) = softmax(beta · x_i), by Newton's method. `rows`: features (K, F) of an item's answers and
    the index of the chosen one. A feature that is equal for all answers of every item has no effect and is
    left out.
    """
    from scipy.stats import norm

    used = [f for f in range(len(names)) if any(np.ptp(x[:, f]) > 0 for x, _ in rows)]
    if not used:
        return {}
    data = [(x[:, used], chosen) for x, chosen in rows]
    beta = np.zeros(len(used))
    for _ in range(50):
        gradient, hessian = -ridge * beta, ridge * np.eye(len(used))
        for x, chosen in data:
            logits = x @ beta
            p = np.exp(logits - logits.max())
            p /= p.sum()
            centred = x - p @ x
            gradient = gradient + centred[chosen]
            hessian = hessian + centred.T @ (p[:, None] * centred)
        step = np.linalg.solve(hessian, gradient)
        beta = beta + step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-9:
            break
    errors = np.sqrt(np.diag(np.linalg.inv(hessian)))
    half = norm.ppf(0.975) * errors
    return {
        names[f]: Effect(
            mean=float(beta[i]),
            low=float(beta[i] - half[i]),
            high=float(beta[i] + half[i]),
            n=len(rows),
            p=float(2 * norm.sf(abs(beta[i]) / errors[i])),
        )
        for i, f in enumerate(used)
    }
