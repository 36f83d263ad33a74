"""The flow under Prefect, with MLflow and the registry, on the tiny model: as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def ratchet(*arguments: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_API", "MLFLOW_TRACKING"))}
    env["PYTHONPATH"] = str(ROOT)
    return subprocess.run([sys.executable, "-m", "flows.cli", *arguments], cwd=cwd, env=env, check=check, capture_output=True, text=True)


def test_run_then_nothing_to_do(fresh_home: Callable[[str], Path]) -> None:
    home = fresh_home("user")
    small = ["--profile", "test", "--home", str(home), "--set", "sft.limit=32", "--set", "evaluate.prompts=4"]
    first = ratchet("run", "sft", *small, "--until", "evaluate", cwd=home)
    assert "sft: done" in first.stdout and "report" in first.stdout, first.stdout + first.stderr
    rest = ratchet("run", "sft", *small, cwd=home)
    assert "6 of 6 stages are made already" in rest.stdout and "done in" not in rest.stdout, "all is made, but nothing is registered yet"
    second = ratchet("run", "sft", *small, cwd=home)
    assert second.stdout.startswith("Nothing to do: all 6 stages")
    shown = ratchet("show", "--home", str(home), cwd=home).stdout
    assert "finished" in shown and "sft" in shown
    run = next((home / "runs").iterdir())
    state = json.loads((run / "run.json").read_text())
    assert state["state"] == "finished" and state["versions"]["sft"] == "1"

    from tasks.mirror import client
    from tasks.registry import history

    mlflow = client(home)
    runs = mlflow.search_runs([e.experiment_id for e in mlflow.search_experiments()])
    names = {r.data.tags["mlflow.runName"]: r for r in runs}
    assert {"sft", "evaluate", "curated"} <= set(names)
    parent = next(r for r in runs if "mlflow.parentRunId" not in r.data.tags)
    assert all(r.data.tags["mlflow.parentRunId"] == parent.info.run_id for n, r in names.items() if n in ("sft", "evaluate"))
    assert names["sft"].inputs.dataset_inputs, "the data that SFT read is not on its page"
    read = {i.dataset.name for i in parent.inputs.dataset_inputs}
    assert read == {"raw", "drafts", "curated"}, "what the whole run read is not on its own page"
    steps = mlflow.get_metric_history(names["sft"].info.run_id, "policy/loss")
    assert [m.step for m in steps] == [1, 2]
    version = history("ratchet-sft", home=home)[0]
    assert version.tags["lineage.recipe"] == "sft" and "candidate" in version.aliases and "champion" not in version.aliases


def test_plan_changes_nothing(tmp_path: Path) -> None:
    done = ratchet("plan", "chat", "--home", str(tmp_path / "none"), cwd=tmp_path)
    assert "21 to do" in done.stdout and not (tmp_path / "none").exists()


def test_recipes_explain_is_the_resolved_recipe(tmp_path: Path) -> None:
    done = ratchet("recipes", "explain", "dpo", cwd=tmp_path)
    assert "preference.dpo" in done.stdout and "label_smoothing" not in done.stdout and "save_every" in done.stdout
