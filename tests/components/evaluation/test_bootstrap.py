"""Confidence intervals against scipy and closed forms."""

import numpy as np
import pytest
from scipy import stats

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import (
    counts,
    difference,
    expanded,
    mean_interval,
    wilson,
    win_rate,
)


def test_resampling_uses_numpys_generator_of_the_seed() -> None:
    """Published intervals are reproducible: resampling uses numpy's generator of the seed."""
    data = np.random.default_rng(0).exponential(size=60)
    means = data[np.random.default_rng(7).integers(60, size=(10_000, 60))].mean(1)
    found = mean_interval(data, seed=7)
    tail = (1 - expanded(0.95, 60)) / 2
    assert (found["low"], found["high"]) == pytest.approx(
        tuple(np.quantile(means, [tail, 1 - tail])), rel=1e-12
    )


def test_expanded_level_is_hesterbergs() -> None:
    """Section 4.3: α'/2 = Φ(−√(n/(n−1)) t_{α/2,n−1}); for n = 10, t = 2.2622 and √(10/9) · t = 2.3845."""
    assert (1 - expanded(0.95, 10)) / 2 == pytest.approx(stats.norm.cdf(-2.3845), rel=1e-3)
    assert expanded(0.95, 1) == 0.95 and expanded(0.95, 100_000) == pytest.approx(0.95, abs=1e-5)


def test_intervals_of_few_units_cover_as_often_as_they_say() -> None:
    """Of 6 normal numbers; the plain percentile interval covers their mean in 86 % of samples only."""
    rng = np.random.default_rng(6)
    found = [mean_interval(rng.normal(size=6), seed=seed) for seed in range(200)]
    covered = sum(one["low"] <= 0 <= one["high"] for one in found)
    assert covered >= stats.binom.ppf(0.005, 200, 0.95)


def test_percentile_matches_the_normal_closed_form_for_many_units():
    data = np.random.default_rng(1).normal(size=4000)
    interval = mean_interval(data, resamples=4000)
    half = 1.96 * data.std() / 4000**0.5
    assert interval["low"] == pytest.approx(data.mean() - half, abs=0.003)
    assert interval["high"] == pytest.approx(data.mean() + half, abs=0.003)


def test_bootstrap_depends_only_on_the_seed():
    data = np.random.default_rng(5).normal(size=30)
    assert mean_interval(data, seed=3) == mean_interval(data, seed=3) != mean_interval(data, seed=4)


def test_wilson_matches_scipy_and_stays_inside():
    for k, n in ((0, 5), (3, 10), (10, 10), (57, 100)):
        theirs = stats.binomtest(k, n).proportion_ci(method="wilson")
        ours = wilson(k, n)
        assert (ours["low"], ours["high"]) == pytest.approx((theirs.low, theirs.high))


def test_pairing_removes_prompt_variance():
    rng = np.random.default_rng(2)
    hard = rng.normal(scale=10, size=200)
    arm, other = hard + 0.2 + rng.normal(scale=0.1, size=200), hard
    interval = difference(arm, other)
    assert interval["low"] > 0.17 and interval["high"] < 0.23
    with pytest.raises(DataError, match="prompts"):
        difference([1, 2], [1])


def test_interval_of_three_wins_of_three_excludes_certainty():
    interval = win_rate([1, 1, 1])
    assert interval["mean"] == 1 and interval["low"] < 0.5
    assert win_rate([0.5, 0.5])["mean"] == 0.5


@pytest.mark.parametrize("bad", [[], [np.nan, 1.0], [[1.0, 2.0]]])
def test_bad_values_are_refused(bad):
    with pytest.raises(DataError):
        mean_interval(bad)
    with pytest.raises(DataError):
        win_rate([1.5, 0])


def test_resample_counts_sum_to_the_number_of_units():
    drawn = counts(7, 500, 0)
    assert drawn.shape == (500, 7) and (drawn.sum(1) == 7).all() and drawn.mean() == 1


def test_wilson_intervals_contain_the_share() -> None:
    """At the ends the bound is the share itself, whatever its rounding: 25 of 25 gave 0.9999999999999999."""
    for trials in range(1, 400):
        none, every = wilson(0, trials), wilson(trials, trials)
        assert none["low"] == 0.0 == none["mean"] < none["high"]
        assert every["low"] < every["mean"] == every["high"] == 1.0
