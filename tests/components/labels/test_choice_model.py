"""Conditional logit against scikit-learn and simulated effects."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from ratchet.components.labels.choice_model import conditional_logit


def chosen(beta: np.ndarray, number: int, answers: int, seed: int) -> list[tuple[np.ndarray, int]]:
    rng, rows = np.random.default_rng(seed), []
    for _ in range(number):
        x = rng.normal(size=(answers, len(beta)))
        rows.append((x, int((x @ beta + rng.gumbel(size=answers)).argmax())))
    return rows


def test_for_pairs_it_is_logistic_regression_on_differences() -> None:
    rows = chosen(np.array([0.8, -0.4]), 300, 2, seed=0)
    found = conditional_logit(rows, ("a", "b"), ridge=1e-9)
    x, y = np.array([x[0] - x[1] for x, _ in rows]), [choice == 0 for _, choice in rows]
    oracle = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-9).fit(x, y).coef_[0]
    assert [found["a"]["mean"], found["b"]["mean"]] == pytest.approx(oracle, abs=1e-4)


def test_intervals_contain_simulated_effects_of_three_answers() -> None:
    inside = 0
    for seed in range(40):
        found = conditional_logit(chosen(np.array([0.5, 0.0]), 150, 3, seed), ("a", "b"))
        inside += found["a"]["low"] <= 0.5 <= found["a"]["high"]
        inside += found["b"]["low"] <= 0.0 <= found["b"]["high"]
    assert inside >= 70  # of 80 at 95 %


def test_constant_features_are_left_out_and_separation_stays_finite() -> None:
    rows = [(np.array([[1.0, 1.0], [0.0, 1.0]]), 0)] * 20
    found = conditional_logit(rows, ("decides", "constant"))
    assert list(found) == ["decides"] and np.isfinite(found["decides"]["mean"])
    assert conditional_logit([], ("a",)) == {}
