"""Win rates on synthetic arms that differ only in length or only in quality."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import mean_interval
from ratchet.components.evaluation.win_rate import compare, length_controlled, per_prompt


def world(quality, taste_for_length, n=600, seed=0):
    """Scores of two arms whose lengths differ by N(5, 5); the score is quality plus tanh of the length gap
    with logistic noise.
    """
    rng = np.random.default_rng(seed)
    ours, theirs = rng.normal(25, 3.5, n), rng.normal(20, 3.5, n)
    gap = ours - theirs
    scores = quality + taste_for_length * np.tanh(gap / gap.std()) + rng.logistic(size=n)
    return scores, np.zeros(n), ours, theirs


def test_length_controlled_rate_is_a_half_when_only_length_differs():
    found = compare(*world(quality=0.0, taste_for_length=2.0, n=4000), resamples=200)
    assert found["raw"]["low"] > 0.6
    assert found["length_controlled"]["mean"] == pytest.approx(0.5, abs=0.04)
    assert found["length_controlled"]["low"] < 0.5 < found["length_controlled"]["high"]
    assert found["length_effect"] == pytest.approx(2, abs=0.2) and found["length_ratio"] == pytest.approx(
        1.25, abs=0.03
    )


def test_length_controlled_interval_covers_the_true_rate():
    worlds = [
        compare(*world(0.0, 2.0, n=100, seed=seed), resamples=200)["length_controlled"] for seed in range(60)
    ]
    assert np.mean([w["low"] <= 0.5 <= w["high"] for w in worlds]) >= 0.85
    assert np.mean([w["mean"] for w in worlds]) == pytest.approx(0.5, abs=0.04)


def test_length_control_changes_nothing_when_only_quality_differs():
    found = compare(*world(quality=1.0, taste_for_length=0.0))
    for kind in ("raw", "length_controlled"):
        assert found[kind]["mean"] == pytest.approx(expit(1.0), abs=0.07) and found[kind]["low"] > 0.5


def test_length_control_fit_equals_scikit_learn():
    scores, other, ours, theirs = world(0.3, 1.0, n=200)
    gap, outcome = ours - theirs, (scores > other).astype(float)
    interval, effect = length_controlled(outcome, gap, np.arange(200), resamples=10)
    x = np.stack([np.ones(200), np.tanh(gap / gap.std())], 1)
    oracle = LogisticRegression(fit_intercept=False, C=10, tol=1e-10).fit(x, outcome).coef_[0]
    assert interval["mean"] == pytest.approx(expit(oracle[0]), abs=1e-5) and effect == pytest.approx(
        oracle[1], abs=1e-4
    )


def test_responses_are_averaged_per_prompt():
    assert per_prompt([[1.0, 3.0], [5.0]], [[2.0, 1.0], [0.0]]).tolist() == [(0 + 0.5 + 1 + 1) / 4, 1.0]
    many = compare([[1.0] * 9, [0.0]], [[0.0] * 9, [1.0]], [[4] * 9, [4]], [[4] * 9, [4]])
    assert many["raw"]["mean"] == 0.5 == pytest.approx(many["length_controlled"]["mean"]) and many[
        "wins"
    ] == [1.0, 0.0]


def test_swapping_the_arms_mirrors_both_rates():
    a, b, la, lb = world(0.5, 1.0, n=120)
    one, two = compare(a, b, la, lb), compare(b, a, lb, la)
    for kind in ("raw", "length_controlled"):
        assert one[kind]["mean"] == pytest.approx(1 - two[kind]["mean"], abs=1e-6)


def test_win_rate_of_a_sweep_is_finite_and_of_ties_one_half():
    swept = compare([1.0] * 20, [0.0] * 20, [5] * 20, [4] * 20)
    assert 0.9 < swept["length_controlled"]["mean"] < 1 and swept["raw"]["low"] > 0.8
    tied = compare([1.0] * 8, [1.0] * 8, [5] * 8, [4] * 8)
    assert tied["ties"] == 1 and tied["raw"]["mean"] == tied["length_controlled"]["mean"] == 0.5


def test_equal_outcomes_are_as_uncertain_at_equal_length():
    """One win of one, or three of three, shows nothing: Wilson's bounds of 3 of 3 are 0.438 and 1."""
    for n, low in ((1, 0.2065), (3, 0.4385)):
        found = compare([1.0] * n, [0.0] * n, [5.0, 7.0, 6.0][:n], [5.0, 6.0, 7.0][:n])
        assert found["length_controlled"]["low"] == pytest.approx(low, abs=1e-4)
        assert found["length_controlled"]["high"] == 1 and found["raw"]["low"] == pytest.approx(low, abs=1e-4)
    mixed = compare([[1.0, 0.0, 0.0]], [[0.5]], [[5, 5, 5]], [[5]])["length_controlled"]
    assert mixed["low"] < 0.1 and mixed["high"] > 0.8


def test_interval_of_few_prompts_is_as_wide_as_that_of_the_raw_rate():
    """Without a difference in length, but for the weak prior; the plain percentiles are [0.45, 0.9]."""
    wins = np.array([1, 1, 1, 0, 1, 0.5, 1, 0, 1, 0.5])
    found, _ = length_controlled(wins, np.zeros(10), np.arange(10))
    raw = mean_interval(wins)
    assert (raw["low"], raw["high"]) == pytest.approx((0.4, 0.95), abs=0.01)
    assert found["low"] < 0.42 and found["high"] > 0.91


def test_arms_must_match():
    with pytest.raises(DataError, match="prompts"):
        compare([1.0], [1.0, 2.0], [1], [1, 1])
    with pytest.raises(DataError, match="finite"):
        compare([float("nan")], [1.0], [1], [1])
    with pytest.raises(DataError, match="shape"):
        compare([[1.0, 2.0]], [[1.0]], [[1]], [[1]])
