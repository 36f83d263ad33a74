"""Orchestration overhead: `ratchet run` of a tiny recipe against the same stages called in one process.

Both start with only the tiny model, and both include starting Python and importing torch. The difference is a
fixed part (Prefect server, MLflow tables) and a part per stage (child process, tracking); a repeated run with
nothing to do is measured too. Outside a DVC workspace, so the final `dvc commit` is not included.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.compare import ROOT

RECIPE = "raft"
NOTHING_SECONDS, SHARE = 5.0, 0.02
"""The goals: seconds of a run with nothing to do, and share of the default run."""


def measured(
    folder: Path, environment: dict[str, str], *, repeats: int, run_seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Seconds of a run, of its stages in one process, and of a repeated run; medians over alternating
    `repeats`. `run_seconds`: duration of the default run, for the relative overhead. `RuntimeError` if a run
    fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder, environment = folder.resolve(), {**environment, "PYTHONPATH": str(ROOT / "infra" / "package")}
    model = folder / "model"
    _timed(
        [sys.executable, "-m", "benchmarks.orchestration", "--home", str(model), "--until", "model_policy"],
        environment,
        folder,
    )
    found: dict[str, list[float]] = {"run": [], "one_process": [], "again": []}
    stages = 0
    for _ in range(repeats):
        home = _home(folder / "run", model)
        command = [
            sys.executable,
            "-c",
            "from ratchet.flows.cli import main; main()",
            "run",
            RECIPE,
            "--home",
            str(home),
            "--profile",
            "cpu",
        ]
        found["run"].append(_timed(command, environment, folder))
        found["again"].append(_timed(command, environment, folder))
        stages = (
            len(list((home / "runs").glob("*/stages/*"))) - 1
        )  # without the model, which was there before
        home = _home(folder / "one", model)
        found["one_process"].append(
            _timed(
                [sys.executable, "-m", "benchmarks.orchestration", "--home", str(home)], environment, folder
            )
        )
        say("orchestration " + ", ".join(f"{name} {seconds[-1]:.1f} s" for name, seconds in found.items()))
    middle = {name: median(seconds) for name, seconds in found.items()}
    overhead = middle["run"] - middle["one_process"]
    return {
        "recipe": RECIPE,
        "stages": stages,
        "seconds": middle,
        "all_seconds": found,
        "overhead_seconds": overhead,
        "share_of_default_run": overhead / run_seconds,
        "default_run_seconds": run_seconds,
        "goals": {"again_seconds": NOTHING_SECONDS, "share_of_default_run": SHARE},
    }


def table(found: dict[str, Any]) -> str:
    seconds = found["seconds"]
    return (
        "| orchestration | measured | wanted |\n|---|---|---|\n"
        f"| `ratchet run {found['recipe']}`, {found['stages']} stages | {seconds['run']:.1f} s | |\n"
        f"| the same stages in one process | {seconds['one_process']:.1f} s | |\n"
        f"| overhead, and as a share of a default run of {found['default_run_seconds']:.0f} s | "
        f"{found['overhead_seconds']:.1f} s, "
        f"{100 * found['share_of_default_run']:.1f} % | ≤ {100 * SHARE:.0f} % |\n"
        f"| running again, nothing to do | {seconds['again']:.1f} s | ≤ {NOTHING_SECONDS:.0f} s |\n"
    )


def _home(place: Path, model: Path) -> Path:
    """A new home that contains only the tiny model."""
    shutil.rmtree(place, ignore_errors=True)
    for made in (model / "store").glob("model_policy-*"):
        shutil.copytree(made, place / "store" / made.name)
    return place


def _timed(command: list[str], environment: dict[str, str], folder: Path) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}:\n{(done.stderr or done.stdout)[-3000:]}"
        )
    return time.perf_counter() - started


def in_one_process(home: Path, until: str | None) -> None:
    """The stages of the recipe without flow, tracker or child processes."""
    from ratchet.tasks.pipeline import Pipeline

    pipeline = Pipeline.open(RECIPE, home=home, profile="cpu")
    pipeline.profile = replace(pipeline.profile, launch="inline")
    for stage in pipeline.stages:
        pipeline.make(stage)
        if stage == until:
            break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--until")
    given = parser.parse_args()
    in_one_process(given.home, given.until)
    gc.freeze()  # as at the end of the `ratchet` command
