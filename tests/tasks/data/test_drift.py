"""Data drift: the index by hand and under the null hypothesis, moved columns, and a run that records and
shows it.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.tasks.data import drift
from ratchet.tasks.data.drift import (
    Shift,
    check_data_drift,
    data_shifts,
    last_run,
    numeric_psi,
    psi,
    psi_limit,
    result_shifts,
    validation_shifts,
)
from ratchet.tasks.tracking import alerts


def rows(
    seed: int, *, count: int = 400, mean: float = 100.0, rating: float = 7.0, topics: str = "abcd"
) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "split": "sft",
            "tokens": draw.gauss(mean, 20),
            "turns": 4,
            "rating": draw.gauss(rating, 1),
            "rating_gap": None,
            "topic": draw.choice(topics),
            "language": "en",
        }
        for _ in range(count)
    ]


def test_stability_index_by_hand() -> None:
    p, q = [(10 + 0.5) / 41, (30 + 0.5) / 41], [(30 + 0.5) / 41, (10 + 0.5) / 41]
    assert psi([10, 30], [30, 10]) == pytest.approx(
        sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))
    )
    assert psi([10, 30], [10, 30]) == 0 and psi([10, 30], [30, 10]) == pytest.approx(
        2 * (20 / 41) * math.log(30.5 / 10.5)
    )


def test_a_value_between_two_bin_edges_counts_with_the_lower_edge() -> None:
    """Ten values that differ: the edges are 2 to 10. Before one in each bin, now ten in that from 2, half a
    record added to each, of 15: 9/15 ln(10.5/1.5) + 9 * 1/15 ln(1.5/0.5).
    """
    size, bins = numeric_psi(range(1, 11), [2.5] * 10)
    assert bins == 10 and size == pytest.approx(0.6 * (math.log(7) + math.log(3)))


def test_a_value_of_several_deciles_has_a_bin_of_its_own() -> None:
    """Deciles 1, 1, 2, 2, ...: bins below 1, 1, between, 2, above 2. Before (0, 3, 0, 7, 0), now
    (0, 0, 10, 0, 0), half a record added to each, of 12.5.
    """
    size, bins = numeric_psi([1.0] * 3 + [2.0] * 7, [1.5] * 10)
    by_hand = (3 * math.log(7) + 10 * math.log(21) + 7 * math.log(15)) / 12.5
    assert bins == 5 and size == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("before", "now"),
    [([2] * 100, [8] * 100), ([2] * 95 + [4] * 5, [40] * 100), ([8] * 100, [2] * 100)],
)
def test_drift_away_from_a_constant_is_seen_in_both_directions(before: list[int], now: list[int]) -> None:
    size, bins = numeric_psi(before, now)
    assert size > psi_limit(bins, len(before), len(now), 0.01)


@pytest.mark.parametrize("kinds", [2, 5, 10**9])
def test_drift_index_has_its_nominal_false_positive_rate(kinds: int) -> None:
    """2,000 pairs of samples of one distribution: over the limit for 5 % in about 5 %, or fewer where values
    repeat.
    """
    draw = random.Random(0)
    over = 0
    for _ in range(2000):
        before, now = ([draw.randrange(kinds) for _ in range(count)] for count in (60, 50))
        size, bins = numeric_psi(before, now)
        over += size > psi_limit(bins, 60, 50, 0.05)
    assert (0.02 if kinds > 100 else 0) <= over / 2000 < 0.08
    assert psi_limit(10, 100_000, 100_000, 0.05) == 0.2 and psi_limit(1, 10, 10, 0.05) == math.inf


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({}, set()),
        ({"mean": 140.0}, {"length in tokens"}),
        ({"rating": 5.0}, {"rating"}),
        ({"topics": "cdef"}, {"topic"}),
    ],
)
def test_exactly_the_shifted_columns_are_reported(change: dict[str, Any], what: set[str]) -> None:
    found = data_shifts(rows(1), rows(2, **change))
    assert {s.what for s in found if s.moved} == what
    assert {s.what for s in found} == {"length in tokens", "turns", "rating", "topic", "language"}, (
        "unrated gaps are not compared"
    )


def test_drift_of_failed_expectations() -> None:
    def report(failed: int) -> dict[str, Any]:
        return {
            "groups": 1000,
            "expectations": [
                {"of": "rows", "says": "no turn is empty", "failed": failed},
                {"of": "splits", "says": "every split has enough groups", "failed": 0},
            ],
        }

    assert [s.moved for s in validation_shifts(report(1), report(3))] == [False]
    (moved,) = validation_shifts(report(1), report(40))
    assert moved.moved and str(moved).startswith(
        "groups that break “no turn is empty” of all data: 0.10% -> 4.00%"
    )
    assert not validation_shifts(report(40), report(1))[0].moved, "better data is no alarm"


def test_results_behind_the_champion() -> None:
    def evaluated(scores: list[float]) -> dict[str, Any]:
        return {
            "per_prompt": {"gold": scores},
            "prompts": "p",
            "answers": {},
            "scorers": {"gold": "g"},
            "policy": "",
            "metrics": {},
        }

    champion = evaluated([0.5 + 0.01 * (i % 7) for i in range(60)])
    worse = evaluated([0.3 + 0.01 * (i % 5) for i in range(60)])
    assert [s.moved for s in result_shifts(worse, champion)] == [True]
    assert [s.moved for s in result_shifts(champion, worse)] == [False]
    assert not result_shifts(evaluated([0.5]), {**champion, "prompts": "others"}), (
        "other prompts are not compared"
    )


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    """A stub pipeline with one earlier finished run; `data(name, rows)` writes curated data."""
    import pandas as pd

    def data(folder: Path, table: list[dict[str, Any]]) -> Path:
        folder.mkdir(parents=True)
        pd.DataFrame(table).to_parquet(folder / "statistics.parquet")
        (folder / "validation.json").write_text(json.dumps({"groups": len(table), "expectations": []}))
        return folder

    for name, ended in (("toy-old", 1.0), ("toy-last", 2.0)):
        data(tmp_path / "runs" / name / "stages" / "curated", rows(1))
        (tmp_path / "runs" / name / "run.json").write_text(
            json.dumps({"recipe": "toy", "state": "finished", "ended": ended})
        )
    now = data(tmp_path / "store" / "curated-now", rows(2, mean=150.0))
    run = SimpleNamespace(path=tmp_path / "runs" / "toy-now", name="toy-now")
    run.path.mkdir()
    (run.path / "run.json").write_text(
        json.dumps({"recipe": "toy", "state": "running", "run": "toy-now", "revision": "abc"})
    )
    return SimpleNamespace(
        run=run, recipe=SimpleNamespace(name="toy"), artifact=lambda _: SimpleNamespace(path=now)
    )


def test_run_records_alerts_and_shows_drift(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    emitted: list[Any] = []
    monkeypatch.setattr(alerts, "emit_alert", lambda *what: emitted.append(what))
    last = last_run(pipeline)
    assert last is not None and last.name == "toy-last"
    (moved,) = check_data_drift(pipeline)
    assert (
        moved.what == "length in tokens"
        and len(emitted) == 1
        and emitted[0][0] == drift.EVENT
        and "mean 1" in emitted[0][2]
    )
    written = json.loads((pipeline.run.path / "drift.json").read_text())["data"]
    assert (
        written["against"] == "toy-last"
        and written["moved"] == [str(moved)]
        and Shift(**written["compared"][0])
    )
    from typer.testing import CliRunner

    from ratchet.flows.cli import app

    shown = CliRunner().invoke(app, ["show", "toy-now", "--home", str(tmp_path)]).output
    assert f"drift      data against toy-last: {moved}" in shown.replace("\n", " ")


def test_a_stage_of_another_run_is_not_the_last_run(pipeline: Any, tmp_path: Path) -> None:
    remote = tmp_path / "runs" / "toy-failed.sft"  # of a run that failed afterwards
    remote.mkdir()
    (remote / "run.json").write_text(json.dumps({"recipe": "toy", "state": "finished", "ended": 3.0}))
    last = last_run(pipeline)
    assert last is not None and last.name == "toy-last"


def test_drift_errors_never_stop_a_run(
    pipeline: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "runs" / "toy-last" / "stages" / "curated" / "statistics.parquet").write_text("broken")
    assert check_data_drift(pipeline) == [] and "drift of data could not be checked" in caplog.text
