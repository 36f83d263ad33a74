"""Closed form of best of n against all subsets by brute force."""

import itertools
import math

import numpy as np
import pytest

from ratchet.components.errors import DataError
from ratchet.components.evaluation.best_of_n import accuracy_within_prompts, best_of_n, expected_best


def brute_force(scores, truths, n):
    """Mean over all subsets; tied highest scores share the value."""
    scores = [-math.inf if s is None else s for s in scores]
    found = []
    for subset in itertools.combinations(range(len(scores)), n):
        best = max(scores[i] for i in subset)
        found.append(np.mean([truths[i] for i in subset if scores[i] == best]))
    return float(np.mean(found))


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_expected_best_is_the_mean_over_all_subsets(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        scores, truths = list(rng.normal(size=8)), list(rng.integers(0, 2, 8).astype(float))
        assert expected_best(scores, truths, n) == pytest.approx(brute_force(scores, truths, n))
    assert expected_best([None, 1.0, 2.0, None, 0.5, 3.0, -1.0, 0.0], truths, n) == pytest.approx(
        brute_force([None, 1.0, 2.0, None, 0.5, 3.0, -1.0, 0.0], truths, n)
    )


def test_tied_scores_share_their_value():
    """In a subset that holds some of the tied answers, each is the best equally often over all subsets of its
    size.
    """
    assert (
        expected_best([1.0, 1.0, 1.0], [1, 0, 0], 1)
        == expected_best([1.0, 1.0, 1.0], [1, 0, 0], 2)
        == pytest.approx(1 / 3)
    )
    assert (
        expected_best([2.0, 1.0, 2.0], [1, 0, 0], 2)
        == pytest.approx(brute_force([2.0, 1.0, 2.0], [1, 0, 0], 2))
        == 0.5
    )


def test_best_of_n_curve_rises_for_a_good_and_falls_for_an_inverted_reward_model():
    rng = np.random.default_rng(0)
    truths = rng.integers(0, 2, (60, 8)).astype(float)
    good, inverted = best_of_n(truths + rng.normal(0, 0.5, (60, 8)), truths), best_of_n(-truths, truths)
    assert list(good) == ["1", "2", "4", "8", "rises"]
    assert good["1"]["mean"] == pytest.approx(truths.mean()) == inverted["1"]["mean"]
    assert (
        good["1"]["mean"] < good["2"]["mean"] < good["4"]["mean"] < good["8"]["mean"]
        and good["rises"]["low"] > 0
    )
    assert (
        good["rises"]["mean"] == pytest.approx(good["8"]["mean"] - good["1"]["mean"])
        and good["rises"]["n"] == 60
    )
    assert inverted["rises"]["high"] < 0
    coin = best_of_n(rng.normal(size=(60, 8)), truths)
    assert coin["rises"]["low"] < 0 < coin["rises"]["high"]


def test_best_of_n_omits_prompts_with_too_few_answers_and_needs_two():
    found = best_of_n([[0, 1, 2, 3], [5, 4]], [[0, 0, 0, 1], [1, 1]])
    assert list(found) == ["1", "2", "4", "rises"] and found["4"]["mean"] == 1 and found["1"]["n"] == 1
    with pytest.raises(DataError, match="at least 2 answers"):
        best_of_n([[1.0]], [[1.0]])


def test_accuracy_within_prompts_is_the_area_under_the_roc_curve_of_each():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    scores, truths = (
        rng.normal(size=(30, 8)).round(1).tolist(),
        (rng.random((30, 8)) < 0.4).astype(float).tolist(),
    )
    areas = [roc_auc_score(t, s) for s, t in zip(scores, truths, strict=True) if 0 < sum(t) < 8]
    found = accuracy_within_prompts([*scores, [1.0, 2.0], []], [*truths, [1.0, 1.0], []])
    assert (
        found["mean"] == pytest.approx(np.mean(areas))
        and found["n"] == len(areas)
        and found["low"] < found["mean"] < found["high"]
    )
    assert accuracy_within_prompts([[1.0, 2.0]], [[0.0, 0.0]]) is None
    assert accuracy_within_prompts([[None, 0.0]], [[0.0, 1.0]])["mean"] == 1.0
