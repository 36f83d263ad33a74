"""Gates in both directions, at ties and without the metric; each health rule on its own."""

import math

import numpy as np
import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.evaluation.gates import check_gates
from ratchet.components.evaluation.health import check
from ratchet.components.piece import catalogue
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.recipe import load

FLAT = {
    "win_rate.mean": 0.6,
    "win_rate.low": 0.52,
    "win_rate.high": 0.68,
    "perplexity_ratio": 1.1,
    "distinct_2_ratio": 0.9,
}
GATES = {
    "win_rate": {"over": 0.5, "interval": True},
    "perplexity_ratio": {"below": 1.3},
    "distinct_2_ratio": {"over": 0.7},
}


def passes(metrics, **gate):
    return check_gates(metrics, {"m": gate})["passed"]


def test_all_gates_give_a_reason_and_pass():
    found = check_gates(FLAT, GATES)
    assert found["passed"] and len(found["reasons"]) == 3 and all(found["gates"].values())
    nested = {**FLAT, "win_rate": {"mean": 0.6, "low": 0.52, "high": 0.68}}
    assert check_gates(nested, GATES) == found


@pytest.mark.parametrize(
    "change", [{"win_rate.low": 0.49}, {"perplexity_ratio": 1.4}, {"distinct_2_ratio": 0.6}]
)
def test_one_failing_gate_fails_all_with_its_reason(change):
    found = check_gates({**FLAT, **change}, GATES)
    name = next(iter(change)).split(".")[0]
    assert not found["passed"] and [n for n, ok in found["gates"].items() if not ok] == [name]
    assert any(r.startswith(f"{name}: failed") for r in found["reasons"])


def test_directions_ties_and_intervals():
    assert (
        passes({"m": 0.51}, over=0.5)
        and not passes({"m": 0.49}, over=0.5)
        and not passes({"m": 0.5}, over=0.5)
    )
    assert (
        passes({"m": 0.49}, below=0.5)
        and not passes({"m": 0.51}, below=0.5)
        and not passes({"m": 0.5}, below=0.5)
    )
    wide = {"m": {"mean": 0.6, "low": 0.45, "high": 0.75}}
    assert passes(wide, over=0.5) and not passes(wide, over=0.5, interval=True)
    assert passes(wide, below=0.8, interval=True) and not passes(wide, below=0.7, interval=True)
    assert passes(wide, over=0.55, below=0.65) and not passes(wide, over=0.55, below=0.6)


@pytest.mark.parametrize("limit", [0.0, 0.8, 1.0])
def test_a_length_ratio_of_one_or_less_is_refused(limit):
    """Lengths cannot lie within 1 / limit and limit."""
    with pytest.raises(RecipeError, match="limit"):
        check([{"length": 10.0}], {"length_ratio": {"limit": limit, "action": "warn"}})
    with pytest.raises(RecipeError, match="limit"):
        load("chat", overrides=[f"online.health.length_ratio.limit={limit}"])


def test_an_interval_of_few_prompts_passes_no_gate():
    """Of five prompts all are won by chance in 3 % of cases, of six in 1.6 %."""
    for n, shown in ((5, False), (6, True)):
        row = {"m": {"mean": 0.9, "low": 0.9, "high": 0.9, "n": n}}
        assert passes(row, over=0.5, interval=True) == passes(row, below=1.0, interval=True) == shown
        assert passes({f"m.{end}": v for end, v in row["m"].items()}, over=0.5, interval=True) == shown
        assert passes(row, over=0.5)
        ends = {f"m.{end}": v for end, v in row["m"].items()}
        assert check_gates(ends, {"m.low": {"over": 0.5}})["passed"] == shown
        assert check_gates(ends, {"m.mean": {"over": 0.5}})["passed"]


def test_missing_metric_fails_its_gate():
    assert "no such metric" in check_gates({}, {"win_rate": {"over": 0.5}})["reasons"][0]
    assert not passes({"m": None}, over=0) and not passes({"m": math.nan}, below=1)
    assert "has none" in check_gates({"m": 0.9}, {"m": {"over": 0.5, "interval": True}})["reasons"][0]
    assert not check_gates(FLAT, {})["passed"]


def test_misspelt_gates_are_errors():
    with pytest.raises(RecipeError, match="over"):
        passes({"m": 1}, ovr=0.5)
    with pytest.raises(RecipeError, match="no bound"):
        passes({"m": 1}, interval=True)


FIRST = {
    "length": 20.0,
    "entropy": 2.0,
    "truncated": 0.1,
    "distinct_2": 0.8,
    "equal_rewards": 0.5,
    "kl": 0.0,
    "reward.length": 9.0,
    "reward": 0.0,
    "gold": 0.1,
    "gold.error": 0.03,
}
BAD = {
    "length_ratio": (1.5, {"length": 31.0}),
    "kl": (5.0, {"kl": 5.1}),
    "entropy": (1.0, {"entropy": 0.9}),
    "truncated": (0.3, {"truncated": 0.31}),
    "distinct_2_ratio": (0.7, {"distinct_2": 0.5}),
    "equal_rewards": (0.9, {"equal_rewards": 1.0}),
    "reward_without_gold": (0.5, {"reward": 0.6, "gold": 0.1}),
    "gold_drop": (0.1, {"gold": -0.1}),
}


@pytest.mark.parametrize("name", sorted(catalogue("health")))
def test_each_health_rule_trips_on_its_own_condition(name):
    limit, illness = BAD[name]
    rules = {n: {"limit": limit, "action": "stop"} for n, (limit, _) in BAD.items()}
    assert check([FIRST, FIRST], rules) == []
    tripped = check([FIRST, {**FIRST, **illness}], rules)
    assert [v.rule for v in tripped] == [name] and tripped[0].action == "stop" and tripped[0].limit == limit


def test_chat_recipe_has_every_health_rule_and_a_healthy_run_trips_none():
    """The panels of its first and last round, seed 0."""
    health = plain(load("chat")[0])["online"]["health"]
    assert set(health) == set(catalogue("health"))
    rounds = [
        {
            "length": 22.1,
            "truncated": 0.263,
            "entropy": 2.000,
            "distinct_2": 0.597,
            "kl": 0.0,
            "reward": -0.0116,
            "gold": 0.028,
            "gold.error": 0.0167,
        },
        {
            "length": 32.6,
            "truncated": 0.661,
            "entropy": 1.927,
            "distinct_2": 0.495,
            "kl": 2.44,
            "reward": 0.0088,
            "gold": 0.074,
            "gold.error": 0.0182,
        },
    ]
    assert check(rounds, health) == []
    assert [v.rule for v in check([rounds[0], {**rounds[1], "entropy": 0.1}], health)] == ["entropy"]


def test_length_rule_trips_on_collapse_and_gold_rule_ignores_a_rise():
    assert (
        check([FIRST, {**FIRST, "length": 13.0}], {"length_ratio": {"limit": 1.5, "action": "roll_back"}})[
            0
        ].action
        == "roll_back"
    )
    rule = {"reward_without_gold": {"limit": 0.5, "action": "warn"}}
    assert not check([FIRST, {**FIRST, "reward": 3.0, "gold": 0.2}], rule)
    assert check([FIRST, {**FIRST, "reward": 3.0, "gold": -0.2}], rule)


@pytest.mark.parametrize(
    ("gold", "error", "tripped"),
    [(0.149, 0.04, True), (0.151, 0.04, False), (0.151, 0.05, True), (0.1, 0.0, True)],
)
def test_gold_is_flat_when_it_rose_by_less_than_its_standard_error(
    gold: float, error: float, tripped: bool
) -> None:
    """From 0.1 with standard error 0.03: the error of the change is 0.05 for a rise of 0.04, 0.058 for
    0.05.
    """
    now = {**FIRST, "reward": 3.0, "gold": gold, "gold.error": error}
    found = check([FIRST, now], {"reward_without_gold": {"limit": 0.5, "action": "stop"}})
    assert [v.action for v in found] == ["stop"] * tripped and all(
        "standard error is" in v.reason for v in found
    )


def test_gold_drop_is_measured_from_the_best_round() -> None:
    """The collapse of a reward model right on 90 % of held-out pairs: truth 30, 40, 33 %. Against the first
    round nothing fell.
    """
    rounds = [
        {**FIRST, "gold": gold, "gold.error": error}
        for gold, error in ((0.30, 0.02), (0.40, 0.02), (0.33, 0.02))
    ]
    rule = {"gold_drop": {"limit": 0.05, "action": "roll_back"}}
    assert not check(rounds[:1], rule) and not check(rounds[:2], rule)
    (found,) = check(rounds, rule)
    assert (
        found.value == pytest.approx(0.07) and "0.07 [0.0146, 0.125] below the best round's" in found.reason
    )
    assert not check([*rounds[:2], {**rounds[2], "gold.error": 0.03}], rule), (
        "the interval of the fall, 0.036 * 1.96 on each side, holds 0"
    )
    assert not check([*rounds[:2], {**rounds[2], "gold": 0.36}], rule), "within the limit"


def test_gold_drop_rarely_holds_a_policy_that_stays_as_it_is() -> None:
    """Three rounds of 128 prompts and a true rate of 0.5 in each, a standard deviation of 0.38 a prompt: by
    one standard error a third of the runs is held.
    """
    rng, error = np.random.default_rng(0), 0.38 / 128**0.5
    rule = {"gold_drop": {"limit": 0.05, "action": "roll_back"}}
    runs = [
        [{**FIRST, "gold": gold, "gold.error": error} for gold in rng.normal(0.5, error, 3)]
        for _ in range(2000)
    ]
    assert sum(bool(check(run[:2], rule) or check(run, rule)) for run in runs) / 2000 < 0.08


def test_nan_trips_and_missing_is_reported():
    rule = {"kl": {"limit": 5, "action": "roll_back"}}
    assert check([FIRST, {**FIRST, "kl": math.nan}], rule)[0].action == "roll_back"
    without = {k: v for k, v in FIRST.items() if k != "kl"}
    assert check([without], rule) == []  # before the first update there is nothing to measure
    verdicts = check([FIRST, without], rule)
    assert verdicts[0].action == "warn" and "cannot be evaluated" in verdicts[0].reason


def test_rule_set_to_null_is_disabled():
    assert check([FIRST, {**FIRST, "kl": 99.0}], {"kl": None}) == []
