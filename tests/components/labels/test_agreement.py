"""Krippendorff's alpha against published examples, and the coverage of its interval."""

import numpy as np
import pytest

from ratchet.components.evaluation.bootstrap import counts, percentiles
from ratchet.components.labels.agreement import alpha_interval, category_counts, krippendorff_alpha

NONE = "."


def alpha(*observers: str) -> float:
    units = [
        [value for value in unit if value != NONE] for unit in zip(*map(str.split, observers), strict=True)
    ]
    return float(krippendorff_alpha(category_counts(units))[0])


def test_alpha_of_the_worked_examples_of_krippendorff_2011() -> None:
    binary = alpha("0 1 0 0 0 0 0 0 1 0", "1 1 1 0 0 1 0 0 0 0")
    nominal = alpha("a a b b d c c c e d d a", "b a b b b c c c e d d d")
    missing = alpha(
        "1 2 3 3 2 1 4 1 2 . . .",
        "1 2 3 3 2 2 4 1 2 5 . 3",
        ". 3 3 3 2 3 4 2 2 5 1 .",
        "1 2 3 3 2 4 4 1 2 5 1 .",
    )
    assert [round(value, 3) for value in (binary, nominal, missing)] == [0.095, 0.692, 0.743]


def test_alpha_is_one_without_disagreement_and_undefined_with_one_category() -> None:
    assert alpha("a b a", "a b a") == 1
    assert np.isnan(alpha("a a a", "a a a"))
    assert alpha_interval(category_counts([["a"], ["b"]])) is None, "no unit has two ratings"


def rated(rng: np.random.Generator, units: int) -> np.ndarray:
    """Three ratings of each unit with two categories, wrong with probability 0.2."""
    truth = rng.integers(0, 2, units)
    return category_counts(
        np.where(rng.random((units, 3)) < 0.2, 1 - truth[:, None], truth[:, None]).tolist()
    )


def test_interval_contains_the_population_alpha_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    population = 1 - (2 * 0.2 * 0.8) / 0.5  # two ratings differ with probability 2e(1-e), by chance with 1/2
    assert krippendorff_alpha(rated(rng, 200_000))[0] == pytest.approx(population, abs=0.005)
    inside = 0
    for seed in range(200):
        found = alpha_interval(rated(rng, 60), resamples=400, seed=seed)
        assert found
        inside += found["low"] <= population <= found["high"]
    assert 178 <= inside <= 198  # of 200 at 95 %: 99 % of binomial outcomes, and the bootstrap's shortfall


def test_interval_of_few_units_is_wider_than_plain_percentiles() -> None:
    table = category_counts([["a", "a"], ["a", "b"], ["b", "b"], ["b", "b"], ["a", "a"], ["b", "a"]])
    drawn = krippendorff_alpha(table, counts(6, 2000, 0))
    found = alpha_interval(table)
    assert found and (found["low"], found["high"]) == pytest.approx(percentiles(drawn, 6))
    assert found["low"] < np.nanquantile(drawn, 0.025)
