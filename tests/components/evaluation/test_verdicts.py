"""Verdicts on claims: intervals against scipy, and error rates by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ratchet.components.errors import DataError
from ratchet.components.evaluation.verdicts import (
    Effect,
    crossed,
    decide,
    level_of,
    looks,
    over_seeds,
    spent,
    together,
)


def test_interval_over_seeds_is_the_one_sample_t_interval_of_scipy() -> None:
    values = np.random.default_rng(1).normal(0.3, 1.0, 6)
    for level in (0.95, 0.99):
        effect = over_seeds(values, level)
        theirs = stats.ttest_1samp(values, 0.0).confidence_interval(level)
        assert (effect.low, effect.high) == pytest.approx((theirs.low, theirs.high)) and effect.seeds == 6


def test_interval_of_one_seed_is_the_paired_t_interval_over_prompts() -> None:
    rng = np.random.default_rng(2)
    own, other = rng.normal(size=(2, 20))
    effect, theirs = crossed([own - other]), stats.ttest_rel(own, other).confidence_interval(0.95)
    assert (effect.low, effect.high) == pytest.approx((theirs.low, theirs.high))


def test_interval_without_differences_between_prompts_is_the_one_over_seeds() -> None:
    values = np.array([0.1, 0.4, 0.2, 0.5])
    effect, alone = crossed(np.repeat(values[:, None], 12, axis=1)), over_seeds(values)
    assert (effect.mean, effect.low, effect.high) == pytest.approx((alone.mean, alone.low, alone.high))


def test_crossed_interval_by_hand() -> None:
    """Seed means 1 and 3, prompt means 1, 2, 3: variances 2/2 and 1/3, freedom (4/3)^2 / (1/1 + (1/9)/2)."""
    effect = crossed([[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]])
    variance, freedom = 1 + 1 / 3, (4 / 3) ** 2 / (1 + 1 / 18)
    assert effect.mean == 2.0
    assert effect.high - 2.0 == pytest.approx(stats.t.ppf(0.975, freedom) * variance**0.5)


def test_a_difference_without_variance_has_an_interval_of_width_zero() -> None:
    assert crossed(np.full((3, 4), 0.25)) == Effect(0.25, 0.25, 0.25, 0.95, 3)


def test_equal_differences_of_all_seeds_decide_nothing() -> None:
    """Without an effect, two arms with a standard deviation of a step do so upwards in 1 % of cases."""
    for values in ([1 / 32] * 3, [0.3 - 0.2, 0.2 - 0.1, 0.1], [0.0] * 3):
        for direction in ("higher", "lower"):
            assert decide(over_seeds(values), direction, 0.01) == "undecided"
    assert decide(over_seeds([0.1, 0.1, 0.1001]), "higher", 0.0) == "holds"


@pytest.mark.parametrize("values", [[[1.0, 2.0], [1.0]], [[]], [[1.0, float("nan")], [0.0, 1.0]], [[1.0]]])
def test_ragged_empty_single_or_non_finite_differences_are_an_error(values: list[list[float]]) -> None:
    with pytest.raises(DataError):
        crossed(values)


def test_the_looks_spend_alpha_and_no_more() -> None:
    assert looks(3, 8) == [3, 5, 8] and looks(4, 4) == [4] and looks(3, 20)[-1] == 20
    for count in (1, 2, 3, 7):
        assert sum(1 - level_of(look, count) for look in range(1, count + 1)) == pytest.approx(0.05)
    assert level_of(1, 1) == pytest.approx(0.95) and spent(2, 0.06) == pytest.approx(0.01)


def test_decision_compares_the_interval_with_the_smallest_effect_of_interest() -> None:
    beyond, short, across = (Effect(0, low, high, 0.95, 3) for low, high in ((2, 3), (-1, 0.5), (0.5, 2)))
    assert [decide(one, "higher", 1.0) for one in (beyond, short, across)] == [
        "holds",
        "does not hold",
        "undecided",
    ]
    assert decide(Effect(0, -3, -2, 0.95, 3), "lower", 1.0) == "holds"
    assert decide(Effect(0, 2, 3, 0.95, 3), "lower", 1.0) == "does not hold"
    assert decide(Effect(0, 2, 3, 0.95, 2), "higher", 1.0) == "undecided", "two seeds decide nothing"


def test_a_claim_holds_if_it_holds_against_every_baseline() -> None:
    assert together(["holds", "holds"]) == "holds"
    assert together(["holds", "undecided"]) == "undecided"
    assert together(["undecided", "does not hold", "holds"]) == "does not hold"


@pytest.mark.parametrize(
    "seeds, prompts, noise",
    [(1.0, 0.0, 0.3), (0.2, 0.2, 0.1), (0.3, 0.0, 1.0), (0.0, 1.0, 1.0), (0.0, 0.0, 1.0)],
)
def test_a_claim_without_effect_holds_in_at_most_five_percent_of_comparisons(
    seeds: float, prompts: float, noise: float
) -> None:
    """Over all sequential looks; standard deviations between seeds, between prompts, and of both together."""
    rng, counts, runs = np.random.default_rng(0), looks(3, 8), 1000
    wrong = 0
    for _ in range(runs):
        matrix = rng.normal(0, seeds, (8, 1)) + rng.normal(0, prompts, 24) + rng.normal(0, noise, (8, 24))
        for look, count in enumerate(counts, 1):
            found = decide(crossed(matrix[:count], level_of(look, len(counts))), "higher", 0.0)
            wrong += found == "holds"
            if found != "undecided":
                break
    assert wrong / runs <= 0.05


def test_scalars_without_effect_hold_in_at_most_five_percent_and_large_effects_in_most() -> None:
    rng, counts = np.random.default_rng(1), looks(3, 8)

    def holds(effect: float) -> float:
        found = 0
        for _ in range(1000):
            values = rng.normal(effect, 1.0, 8)
            for look, count in enumerate(counts, 1):
                said = decide(over_seeds(values[:count], level_of(look, len(counts))), "higher", 0.0)
                found += said == "holds"
                if said != "undecided":
                    break
        return found / 1000

    assert holds(0.0) <= 0.05 and holds(3.0) > 0.9
