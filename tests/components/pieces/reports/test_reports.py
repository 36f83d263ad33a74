"""Reports over arms against hand-computed numbers; a new report is one file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import ratchet.components.pieces.reports as folder
from ratchet.components import piece as pieces
from ratchet.components.errors import DataError, RecipeError
from ratchet.components.evaluation.bootstrap import counts, percentiles
from ratchet.components.evaluation.results import Scored
from ratchet.components.evaluation.scoring import reports_of
from ratchet.components.piece import build
from ratchet.components.recipes.recipe import load


def scored(splits: dict[str, str] | None = None, **arms: dict[str, list[float]]) -> Scored:
    """One answer to each prompt."""
    rows = {arm: {name: [[v] for v in values] for name, values in by.items()} for arm, by in arms.items()}
    return Scored(
        splits or dict.fromkeys(arms, "evaluate"), {}, {}, rows, {arm: {} for arm in arms}, own=True
    )


def report(given: Scored, **spec: object) -> dict[str, float]:
    return build("report", spec)(given)


def test_a_gap_on_the_same_prompts_is_paired_and_on_others_is_not() -> None:
    values = {"a": {"x": [3.0, 5.0, 7.0]}, "b": {"x": [1.0, 3.0, 5.0]}}
    paired = report(scored(**values), name="gap", arm="a", other="b", measure="x")
    assert (paired["mean"], paired["low"], paired["high"], paired["n"]) == (2.0, 2.0, 2.0, 3)
    apart = report(
        scored({"a": "evaluate", "b": "evaluate_shifted"}, **values),
        name="gap",
        arm="a",
        other="b",
        measure="x",
    )
    assert apart["mean"] == 2.0 and apart["low"] < 0.5 and apart["high"] > 3.5 and apart["n"] == 6


def test_above_line_is_the_middle_less_the_weighted_ends() -> None:
    given = scored(mid={"x": [4.0, 2.0]}, a={"x": [1.0, 1.0]}, b={"x": [5.0, 1.0]})
    spec = {"name": "above_line", "arm": "mid", "other": "a", "third": "b", "measure": "x"}
    assert report(given, **spec)["mean"] == 1.0  # (4 - 3 + 2 - 1) / 2
    assert report(given, **spec, share=0.25)["mean"] == 1.5  # (4 - 2 + 2 - 1) / 2


def test_recovered_is_the_share_of_the_loss() -> None:
    spec = {"name": "recovered", "arm": "again", "other": "tuned", "third": "before", "measure": "x"}
    values = {"tuned": {"x": [0.0, 0.2]}, "before": {"x": [1.0, 0.8]}, "again": {"x": [0.5, 0.3]}}
    assert report(scored(**values), **spec)["mean"] == pytest.approx(0.375)  # 0.3 of 0.8
    found, undefined = reports_of(scored(**{**values, "before": values["tuned"]}), [spec])
    assert not found and "nothing was lost" in undefined["recovered"]


def test_intervals_of_few_prompts_are_wider_than_plain_percentiles() -> None:
    """Where `other` has 0 and `third` 1 everywhere, `recovered` is a mean of 8 numbers."""
    values = np.random.default_rng(0).normal(size=8)
    arms = {"again": {"x": values.tolist()}, "tuned": {"x": [0.0] * 8}, "before": {"x": [1.0] * 8}}
    spec = {"name": "recovered", "arm": "again", "other": "tuned", "third": "before", "measure": "x"}
    found, drawn = report(scored(**arms), **spec), counts(8, 2000, 0) @ values / 8
    assert (found["low"], found["high"]) == pytest.approx(percentiles(drawn, 8))
    assert found["low"] < np.quantile(drawn, 0.025) and found["high"] > np.quantile(drawn, 0.975)
    ranks = np.random.default_rng(1).normal(size=(6, 2, 8)).round(1)
    given = scored(**{f"a{i}": {"x": x.tolist(), "y": y.tolist()} for i, (x, y) in enumerate(ranks)})
    drawn = counts(8, 500, 0) @ ranks.transpose(2, 0, 1).reshape(8, -1) / 8
    plain = [stats.spearmanr(*row.reshape(6, 2).T).statistic for row in drawn]
    found = report(given, name="correlation", of="x", to="y")
    assert found["low"] < np.quantile(plain, 0.025) and found["high"] >= np.quantile(plain, 0.975)


def test_correlation_is_spearmans_over_the_arms() -> None:
    """Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 (0 + 1 + 1 + 0) / (4 (16 - 1)) = 0.8."""
    given = scored(
        **{f"a{i}": {"x": [float(i)] * 2, "y": [y] * 2} for i, y in enumerate([1.0, 3.0, 2.0, 4.0])}
    )
    found = report(given, name="correlation", of="x", to="y")
    assert found == {"mean": pytest.approx(0.8), "low": 0.8, "high": 0.8, "n": 2}  # prompts
    assert report(given, name="correlation", of="x", to="y", arms=["a1", "a2", "a3"])["mean"] == 0.5
    with pytest.raises(DataError, match="3 arms or more"):
        report(given, name="correlation", of="x", to="y", arms=["a1", "a2"])


def test_regret_is_the_gold_lost_by_the_proxys_choice() -> None:
    given = scored(a={"proxy": [1.0] * 8, "gold": [0.5] * 8}, b={"proxy": [2.0] * 8, "gold": [0.2] * 8})
    assert report(given, name="regret", of="proxy", to="gold")["mean"] == pytest.approx(0.3)
    assert report(given, name="regret", of="gold", to="gold")["mean"] == 0.0
    even, odd = [1.0, 0.0] * 4, [0.0, 1.0] * 4
    equal = scored(a={"proxy": [2.0] * 8, "gold": even}, b={"proxy": [1.0] * 8, "gold": odd})
    found = report(equal, name="regret", of="proxy", to="gold")["mean"]
    assert found <= 0, "chosen and compared on the same prompts it would be over 0"
    with pytest.raises(DataError, match="two arms"):
        build("report", {"name": "regret", "of": "gold", "to": "gold", "arms": ["a"]})(given)


def test_regret_is_zero_by_chance() -> None:
    """Four arms that differ by noise of deviation 1 alone, 8 prompts: on the half on which it was chosen,
    the best of four means over 4 prompts is half a unit above their expectation.
    """
    rng, found = np.random.default_rng(0), []
    for _ in range(150):
        noise = rng.standard_normal((4, 2, 8)).tolist()
        given = scored(**{f"a{i}": {"proxy": proxy, "gold": gold} for i, (proxy, gold) in enumerate(noise)})
        found.append(report(given, name="regret", of="proxy", to="gold", halves=10)["mean"])
    assert abs(np.mean(found)) < 4 * np.std(found) / 150**0.5 < 0.2


def test_the_frontier_is_the_highest_reward_within_the_budget() -> None:
    """Between 0 and 4 it is interpolated; beyond 4 the best arm within the budget is the one at 4."""
    given = scored(
        a={"kl": [0.0, 0.0], "x": [0.5, 0.5]},
        b={"kl": [4.0, 4.0], "x": [0.9, 0.9]},
        c={"kl": [9.0] * 2, "x": [0.7] * 2},
    )
    values = {
        limit: report(given, name="frontier", of="x", limit=limit)["mean"]
        for limit in (0.0, 1.0, 4.0, 6.5, 20.0)
    }
    assert values == pytest.approx({0.0: 0.5, 1.0: 0.6, 4.0: 0.9, 6.5: 0.9, 20.0: 0.9})


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{name: gap, arm: nosuch, other: base, measure: ead}", r"reports\[0\]\.arm: no arm named 'nosuch'"),
        ("{name: gap, arm: policy, other: base, measure: eda}", r"reports\[0\]\.measure: no measure .*'ead'"),
        (
            "{name: correlation, of: ead, to: ead, arms: [base, last]}",
            r"reports\[0\]\.arms: no arm named 'last'",
        ),
        ("{name: gap, arm: policy}", r"'gap' needs 'other'"),
        ("{name: gpa}", r"no report piece named 'gpa'"),
    ],
)
def test_a_report_that_cannot_be_made_is_refused_by_the_check(spec: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        load("sentiment_rloo", overrides=[f"evaluate.reports=[{spec}]"])


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "above_line", "arm": "a", "other": "b", "third": "c", "measure": "x"},
        {"name": "recovered", "arm": "a", "other": "b", "third": "c", "measure": "x"},
        {"name": "frontier", "of": "x", "to": "kl", "limit": 1.5},
        {"name": "regret", "of": "x", "to": "kl"},
    ],
)
def test_arms_on_several_splits_have_no_paired_report(spec: dict[str, object]) -> None:
    """Prompt i of one split is not prompt i of another, whatever their numbers."""
    values = {arm: {"x": [float(i), 0.5], "kl": [float(i)] * 2} for i, arm in enumerate("abc")}
    _, undefined = reports_of(scored({"a": "one", "b": "one", "c": "another"}, **values), [spec])
    assert "on one split of prompts" in undefined[str(spec["name"])]
    with pytest.raises(DataError, match="two prompts"):
        report(scored(a={"x": [1.0]}, b={"x": [2.0]}), name="regret", of="x", to="x")


def test_a_paired_report_over_several_splits_is_refused_by_the_check() -> None:
    changes = [
        "evaluate.arms={start: {model: base}, policy: {}, last: {data: prompts}}",
        "evaluate.reports=[{name: frontier, of: ead, to: ead, limit: 1.0}]",
    ]
    with pytest.raises(RecipeError, match=r"reports\[0\]: 'frontier' compares .* evaluate, prompts"):
        load("sentiment_rloo", overrides=changes)
    changes[1] = "evaluate.reports=[{name: frontier, of: ead, to: ead, limit: 1.0, arms: [start, policy]}]"
    load("sentiment_rloo", overrides=changes)


def test_two_reports_need_two_labels() -> None:
    gap = "{name: gap, arm: policy, other: base, measure: ead}"
    with pytest.raises(RecipeError, match="two reports are called 'gap'"):
        load("sentiment_rloo", overrides=[f"evaluate.reports=[{gap}, {gap}]"])


@pytest.mark.parametrize(
    ("key", "spec"),
    [
        ("measures", "{name: repetition, label: length}"),
        ("measures", "{name: repetition, label: gold}"),
        ("measures", "{name: repetition, label: win_rate}"),
        ("reports", "{name: gap, label: kl_to_sft, arm: policy, other: base, measure: ead}"),
    ],
)
def test_a_label_that_overwrites_another_number_is_refused(key: str, spec: str) -> None:
    with pytest.raises(RecipeError, match="the name of another metric"):
        load("sentiment_rloo", overrides=[f"evaluate.{key}=[{'ead, ' * (key == 'measures')}{spec}]"])


def test_a_new_report_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "components"
    shutil.copytree(pieces.ROOT / "pieces", root / "pieces")
    file = root / "pieces" / "reports" / "largest.py"
    file.write_text('''"""Largest mean of the arms."""
from ratchet.components.evaluation.bootstrap import Interval
from ratchet.components.piece import piece


@piece()
def largest(scored, *, measure: str) -> Interval:
    """The largest mean of `measure`."""
    mean = max(sum(rows) / len(rows) for arm in scored.splits for rows in [scored.by_prompt(arm)[measure]])
    return Interval(mean=mean, low=mean, high=mean, n=1)
''')
    monkeypatch.setattr(pieces, "ROOT", root)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(file.parent)])
    try:
        recipe, _ = load("sentiment_rloo", overrides=["evaluate.reports=[{name: largest, measure: ead}]"])
        assert recipe.evaluate and recipe.evaluate.reports[0]["name"] == "largest"
        found = report(scored(a={"x": [1.0, 2.0]}, b={"x": [3.0, 5.0]}), name="largest", measure="x")
    finally:
        sys.modules.pop("ratchet.components.pieces.reports.largest", None)
    assert found["mean"] == 4.0
