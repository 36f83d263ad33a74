"""Outcome of a run: gates with values, versions, champion, and error and log of a failed run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect.exceptions import Pause
from typer.testing import CliRunner

from ratchet.components.errors import RecipeError
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.flows.cli import app
from ratchet.tasks.tracking.ending import ending
from ratchet.tasks.tracking.outcome import lines_of, outcome, short_result
from ratchet.tasks.tracking.results import headline_metrics

VERDICT = {
    "passed": False,
    "gates": {"win_rate": True, "ending": False},
    "reasons": [
        "win_rate: passed, its value 0.61 is over 0.5",
        "ending: failed, the low end of its interval -0.3 is not over -0.02",
    ],
}


def ratchet(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def run(home: Path, name: str, **state: object) -> RunDirectory:
    run_directory = RunDirectory(home, name)
    run_directory.open("profile: {hardware: {currency: CHF}}\n")
    run_directory.record(
        **{
            "recipe": "mine",
            "state": "finished",
            "started": 1_700_000_000.0,
            "stages": {"sft": "k" * 64},
            **state,
        }
    )
    return run_directory


def test_failed_gates_come_first_with_their_figures(tmp_path: Path) -> None:
    run(
        tmp_path,
        "mine-1",
        verdict=VERDICT,
        champion=False,
        registered={"sft": "mine:1", "reward": "mine-reward:4", "optimise_1": "mine:2"},
    )
    output = ratchet("show", "--home", str(tmp_path)).splitlines()
    assert [
        line
        for line in output
        if "gates" in line or "✗" in line or "✓" in line or line.startswith(("registered", "champion"))
    ] == [
        "gates      1 of 2 failed",
        "           ✗ ending: the low end of its interval -0.3 is not over -0.02",
        "           ✓ win_rate: its value 0.61 is over 0.5",
        "registered mine version 1 (sft), 2 (optimise_1); mine-reward version 4 (reward)",
        "champion   no: 1 of 2 gates failed (ending)",
    ]


@pytest.mark.parametrize(
    ("state", "verdict", "line"),
    [
        ({"champion": True}, "champion", ("champion", "yes")),
        (
            {"champion": False},
            "gates passed, not champion",
            (
                "champion",
                "no: gold +0.1 [-0.1, +0.3] against the champion, version 1: not shown to be better",
            ),
        ),
    ],
)
def test_champion_or_result_of_the_comparison(
    tmp_path: Path, state: dict, verdict: str, line: tuple[str, str]
) -> None:
    passed = {
        "passed": True,
        "gates": {"ending": True},
        "reasons": [
            "ending: passed, its value 1 is over 0",
            "gold +0.1 [-0.1, +0.3] against the champion, version 1: not shown to be better",
        ],
    }
    found = outcome(run(tmp_path, "mine-1", verdict=passed, registered={"sft": "mine:2"}, **state).path)
    assert (
        short_result(found) == verdict
        and lines_of(found)[-1] == line
        and ("gates", "all 1 passed") in lines_of(found)
    )


def test_gates_are_known_before_anything_is_registered(tmp_path: Path) -> None:
    run_directory = run(tmp_path, "mine-1", postponed="no server")
    (run_directory.path / "stages" / "evaluate").mkdir(parents=True)
    (run_directory.path / "stages" / "evaluate" / "results.json").write_text(json.dumps({"verdict": VERDICT}))
    assert lines_of(outcome(run_directory.path))[0] == ("gates", "1 of 2 failed") and (
        "registered",
        "not yet: no server",
    ) in lines_of(outcome(run_directory.path))


@pytest.mark.parametrize(("low", "more"), [(0.45, True), (0.55, False)])
def test_a_reward_model_without_a_required_accuracy_is_shown_with_its_interval(
    low: float, more: bool, tmp_path: Path
) -> None:
    directory = run(tmp_path, "mine-1", not_required=["reward"], stages={"sft": "k", "reward": "l"})
    meta = {"certificate": {"accuracy": {"mean": 0.58, "low": low, "high": 0.7, "n": 60}}}
    found = outcome(directory.path)
    assert not lines_of(found), "its certificate is not made yet"
    for stage in found["stages"]:
        stage["meta"] = meta
    ((label, text),) = lines_of(found)
    assert label == "WARNING" and text.startswith("reward is optimised against without a required accuracy")
    assert f"58.0% [{low:.1%}, 70.0%]" in text and ("not shown to be better than chance" in text) is more


def test_failed_run_shows_its_error_and_log(tmp_path: Path) -> None:
    run_directory = run(
        tmp_path, "mine-1", state="failed", error="StageError: out of\nmemory", failed_stage="sft"
    )
    (run_directory.path / "logs").mkdir()
    (run_directory.path / "logs" / "sft.log").write_text("...")
    output = ratchet("show", "mine-1", "--home", str(tmp_path))
    assert (
        "error      StageError: out of memory (stage sft)" in output
        and f"log        {run_directory.path.resolve()}/logs/sft.log" in output
    )
    assert short_result(outcome(run_directory.path)) == "failed at sft"


def test_runs_lists_a_dead_run_as_interrupted(tmp_path: Path) -> None:
    assert "there is no run" in ratchet("runs", "--home", str(tmp_path))
    run(tmp_path, "mine-1", state="running")
    alive = run(tmp_path, "mine-2", state="running")
    alive.hold()
    rows = [line.split() for line in ratchet("runs", "--home", str(tmp_path)).splitlines()]
    assert [row[:3] for row in rows[1:]] == [["mine-2", "mine", "running"], ["mine-1", "mine", "interrupted"]]
    assert [one["state"] for one in json.loads(ratchet("runs", "--json", "--home", str(tmp_path)))] == [
        "running",
        "interrupted",
    ]


def test_a_misspelt_run_suggests_the_nearest(tmp_path: Path) -> None:
    run(tmp_path, "mine-1")
    with pytest.raises(RecipeError, match=r"'mime-1'.*'mine-1'"):
        CliRunner().invoke(app, ["show", "mime-1", "--home", str(tmp_path)], catch_exceptions=False)


@pytest.mark.parametrize(
    "ask",
    [
        ("show",),
        ("runs",),
        ("plan", "sft", "--profile", "test"),
        ("recipes", "list"),
        ("recipes", "explain", "sft"),
        ("doctor",),
    ],
)
def test_reading_commands_print_json(tmp_path: Path, ask: tuple[str, ...]) -> None:
    run(tmp_path, "mine-1")
    where = () if ask[0] == "recipes" else ("--home", str(tmp_path))
    assert json.loads(ratchet(*ask, *where, "--json"))


def test_a_flag_takes_no_value_and_the_version_is_printed() -> None:
    assert "<bool>" not in ratchet("gc", "--help") and ratchet("--version").startswith("ratchet ")


def test_at_most_twelve_figures_headline_measure_first() -> None:
    """Of 60 numbers: rate, gains with their intervals, then what describes the answers."""
    gain = {
        f"reward.x_gain_vs_{arm}.{end}": 0.123456
        for arm in ("sft", "base")
        for end in ("mean", "low", "high", "n")
    }
    metrics = {
        **{f"final.other_{i}": 1.0 for i in range(40)},
        "final.length": 14.0,
        "final.ended": None,
        "final.reward.x": 0.36,
        **gain,
    }
    found = headline_metrics({"measure": "reward.x", "metrics": metrics})
    assert list(found.items())[:3] == [
        ("final.reward.x", 0.36),
        ("reward.x_gain_vs_base.mean", 0.1235),
        ("reward.x_gain_vs_base.low", 0.1235),
    ]
    scores = {
        "final.reward.reward_model": 2.0,
        "win_rate_reward_model_vs_base.mean": 0.6,
        "win_rate_reward_model_lc_vs_base.mean": 0.5,
    }
    assert headline_metrics({"measure": None, "metrics": scores}) == {
        "final.reward.reward_model": 2.0,
        "win_rate_reward_model_vs_base.mean": 0.6,
    }
    assert len(found) == 8 and found["final.length"] == 14.0 and headline_metrics({}) == {}


@pytest.mark.parametrize("recorded", ["interrupted", "KeyboardInterrupt: "])
def test_a_stopped_run_says_that_it_was_interrupted_and_how_it_continues(
    tmp_path: Path, recorded: str
) -> None:
    run(tmp_path, "mine-1", state="stopped", error=recorded, failed_stage="sft", ended=1_700_000_100.0)
    shown = " ".join(ratchet("show", "--home", str(tmp_path)).split())
    assert (
        "stopped by Ctrl-C or a signal (stage sft); finished stages and checkpoints are kept, the same "
        "command continues" in shown
    )
    assert "KeyboardInterrupt" not in shown and "error" not in shown


def test_a_run_whose_process_ended_says_how_it_continues(tmp_path: Path) -> None:
    run(tmp_path, "mine-1", state="running")
    found = outcome(tmp_path / "runs" / "mine-1")
    assert found["state"] == "interrupted"
    label, text = lines_of(found)[0]
    assert label == "stopped" and text.startswith("its process ended;") and text.endswith("command continues")


def test_the_end_of_a_run_is_recorded_by_the_kind_of_its_error() -> None:
    assert ending(KeyboardInterrupt()) == ("stopped", {"error": "interrupted"})
    assert ending(RecipeError("no")) == ("failed", {"error": "RecipeError: no"})
    assert ending(Pause()) == ("waiting", {"error": None})
