"""The flow under Prefect with MLflow and the registry, on the tiny model, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from ratchet.components.data.statistics import SCHEMA
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.recipe import dump, load
from ratchet.components.types import Artifact
from ratchet.flows.cli import _print_result, app
from ratchet.flows.display import Display, open_console
from ratchet.tasks.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]


def ratchet(*arguments: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_API", "MLFLOW_TRACKING"))}
    env["PYTHONPATH"] = str(ROOT / "infra" / "package")
    return subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli", *arguments],
        cwd=cwd,
        env=env,
        check=check,
        capture_output=True,
        text=True,
    )


def test_run_then_nothing_to_do(fresh_home: Callable[[str], Path]) -> None:
    home = fresh_home("user")
    small = ["--profile", "test", "--home", str(home), "--set", "sft.limit=32", "--set", "evaluate.prompts=4"]
    first = ratchet("run", "sft", *small, "--until", "evaluate", cwd=home)
    assert "sft: done" in first.stdout and "report" in first.stdout, first.stdout + first.stderr
    rest = ratchet("run", "sft", *small, cwd=home)
    assert "a watcher failed" not in first.stderr + rest.stderr, (
        "MLflow or the Prefect page was not told of all of it"
    )
    assert "8 of 8 stages are finished" in rest.stdout and "done in" not in rest.stdout, (
        "all is made, but nothing is registered yet"
    )
    second = ratchet("run", "sft", *small, cwd=home)
    assert second.stdout.startswith("Nothing to do: all 8 stages")
    shown = ratchet("show", "--home", str(home), cwd=home).stdout
    assert "finished" in shown and "sft" in shown
    run = next((home / "runs").iterdir())
    state = json.loads((run / "run.json").read_text())
    assert state["state"] == "finished" and state["versions"]["sft"] == "1"

    from ratchet.tasks.registry.versions import history
    from ratchet.tasks.tracking.server import client

    mlflow = client(home)
    runs = mlflow.search_runs([e.experiment_id for e in mlflow.search_experiments()])
    names = {r.data.tags["mlflow.runName"]: r for r in runs}
    assert {"sft", "evaluate", "curated"} <= set(names)
    parent = next(r for r in runs if "mlflow.parentRunId" not in r.data.tags)
    assert parent.data.tags["mlflow.runName"] == run.name, "one name in MLflow, Prefect and under runs/"
    assert all(
        r.data.tags["mlflow.parentRunId"] == parent.info.run_id
        for n, r in names.items()
        if n in ("sft", "evaluate")
    )
    assert names["sft"].inputs.dataset_inputs, "the data that SFT read is not on its page"
    read = {i.dataset.name for i in parent.inputs.dataset_inputs}
    assert read == {"raw", "drafts", "curated", "answers_base", "answers_policy"}, (
        "what the whole run read is not on its own page"
    )
    steps = mlflow.get_metric_history(names["sft"].info.run_id, "policy/loss")
    assert [m.step for m in steps] == [1, 2]
    version = history("sft", home=home)[0]
    assert (
        version.tags["lineage.recipe"] == "sft"
        and "candidate" in version.aliases
        and "champion" not in version.aliases
    )


def test_plan_changes_nothing(tmp_path: Path) -> None:
    done = ratchet("plan", "chat", "--home", str(tmp_path / "none"), cwd=tmp_path)
    assert "24 to do" in done.stdout and not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("change", "makes"),
    [
        ("fit.learning_rate=1e-5", ["optimise_2"]),
        ("rollout.temperature=0.7", ["rollout_2", "annotate_2", "select_2", "optimise_2"]),
    ],
)
def test_changed_round_replans_it_and_later_rounds_only(
    change: str, makes: list[str], fresh_home: Callable[[str], Path]
) -> None:
    home = fresh_home("home")
    pipeline = Pipeline.open("online_dpo", home=home, profile="test", overrides=["online.rounds=3"])
    for stage in [
        s.stage for s in pipeline.status() if s.state != "done"
    ]:  # a finished run, without the work
        with pipeline.store.working(stage.name, stage.key) as work:
            pq.write_table(
                SCHEMA.empty_table(), work.product / "statistics.parquet"
            )  # which the plan reckons with
            pipeline.store.publish(work, stage.name, stage.key, stage.kind, [], {})

    def planned(*more: str) -> dict[str, str]:
        done = CliRunner().invoke(
            app,
            [
                "plan",
                "online_dpo",
                "--profile",
                "test",
                "--home",
                str(home),
                "--set",
                "online.rounds=3",
                *more,
            ],
        )
        assert done.exit_code == 0, done.output
        rows = [line.split() for line in done.output.splitlines()]
        return {row[0]: row[1] for row in rows if row and row[0] in pipeline.stages}

    makes = [
        *makes,
        *(f"{step}_3" for step in ("rollout", "annotate", "select", "optimise")),
        "answers_policy",
        "evaluate",
    ]
    assert planned() == dict.fromkeys(pipeline.stages, "keep")
    assert planned("--set", f"online.by_round.2.{change}") == {
        name: "make" if name in makes else "keep" for name in pipeline.stages
    }


def test_recipes_explain_is_the_resolved_recipe(tmp_path: Path) -> None:
    done = ratchet("recipes", "explain", "dpo", "--defaults", cwd=tmp_path)
    assert (
        "preference.dpo" in done.stdout
        and "label_smoothing" not in done.stdout
        and "save_every" in done.stdout
    )


def test_explain_takes_overrides() -> None:
    done = CliRunner().invoke(
        app, ["recipes", "explain", "dpo", "--defaults", "--set", "offline.fit.batch=3"]
    )
    said = yaml.safe_load(done.output)["recipe"]
    assert said["offline"]["fit"]["batch"] == 3
    assert (
        said["data"]["near_threshold"],
        said["data"]["min_groups"],
        said["data"]["reward"]["max_tokens"],
    ) == (0.8, 2, 512), "defaults of `data`"


def test_explained_recipe_is_valid_yaml() -> None:
    """Addresses are longer than a line of 80 columns: a piped recipe is read back as it was written."""
    text = CliRunner().invoke(app, ["recipes", "explain", "chat", "--defaults"]).output
    assert text == f"{dump(*load('chat'))}\n" and max(map(len, text.splitlines())) > 80


def test_log_has_one_line_per_event(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stage, long = Stage("annotate_1", "annotate", "groups", {}), "answers " * 30 + "end"
    with Display(open_console()) as display:
        display.started(stage, tmp_path)
        display.last_print -= 60
        display.progressed(stage, {"step": 120, "of": 384, "unit": "answers", "metrics": {}})
        display.last_print -= 60
        display.progressed(stage, {"step": 3, "of": 8, "metrics": {"dpo/margin": 0.25}})
        display.finished(
            stage, Artifact("groups", tmp_path, "k", (), {"headline": long}), reused=False, seconds=24.0
        )
        display.console.print(display.table())
    output = capsys.readouterr().out.splitlines()
    assert output[:4] == [
        "annotate 1: started",
        "annotate 1: 120 of 384 answers",
        "annotate 1: step 3 of 8  margin 0.25",
        f"annotate 1: done in 24 s  {long}",
    ]
    assert len(output) == 6 and long in output[5]
    assert open_console(force_terminal=True).width == Console(force_terminal=True).width, (
        "a terminal keeps its own"
    )


def test_terminal_shows_progress() -> None:
    stage = Stage("rollout_1", "rollout", "groups", {})
    with Display(Console(force_terminal=True, quiet=True)) as display:
        display.started(stage, Path())
        display.progressed(stage, {"step": 120, "of": 384, "unit": "answers", "metrics": {}})
        assert display.live is not None
        task = display.live.tasks[0]
        assert (task.completed, task.total, task.fields["count"]) == (120, 384, "120/384 answers")


def test_missing_outputs_are_not_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pipeline = Pipeline.open("sft", home=tmp_path, profile="test")  # as after `run --until curate`
    pipeline.run.open("recipe: {}\n")
    _print_result(open_console(), pipeline)
    output = capsys.readouterr().out
    assert str(pipeline.run.path) in output and "model" not in output and "report" not in output
    folder = tmp_path / "store" / "sft"
    folder.mkdir(parents=True)
    pipeline.run.link("sft", folder)
    _print_result(open_console(), pipeline)
    assert f"model      {pipeline.run.path / 'stages' / 'sft'}\n" in capsys.readouterr().out
