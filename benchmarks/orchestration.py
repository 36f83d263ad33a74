"""Orchestration overhead: `ratchet run` of a tiny recipe against the same stages called in one process.

Both start with only the tiny model, and both include starting Python and importing torch. The difference is a
fixed part (Prefect server, MLflow tables) and a part per stage (child process, tracking); a repeated run with
nothing to do is measured too. Outside a DVC workspace, so the final `dvc commit` is not included.

`--shards N` simulates a stage of N shards: the real slices, pipes, engine processes and files, with a call
in place of the model that returns a ready answer, so that what is measured is the overhead of a shard.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
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


def shards_overhead(shards: int, *, engines: int, answers: int = 16, length: int = 32) -> dict[str, float]:
    """Milliseconds that a shard of `answers` answers of `length` tokens costs besides its computation: in
    this process, over `engines` processes, and read back by a second attempt.
    """
    found = {"in_process": _slices(shards, 0, answers, length)[0]}
    found["engines"], found["again"] = _slices(shards, engines, answers, length)
    return {name: 1000 * seconds / shards for name, seconds in found.items()}


def _slices(shards: int, engines: int, answers: int, length: int) -> tuple[float, float]:
    """Seconds of all shards, and of a second attempt that finds them computed."""
    from ratchet.components.stages.slices import Shards, Slice
    from ratchet.components.types import Request

    slices = [
        Slice("generate", [Request(tuple(range(64)), seed=i)], frozenset(), answers, f"{i:024d}")
        for i in range(shards)
    ]
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe() for _ in range(engines)]
        workers = [
            context.Process(target=_answer, args=(theirs, answers, length), daemon=True)
            for _, theirs in pipes
        ]
        for worker in workers:
            worker.start()
        for ours, _ in pipes:
            ours.recv()  # it has started
        seconds = []
        for _ in range(2):
            stage = Shards(Path(folder), [ours for ours, _ in pipes])
            started = time.perf_counter()
            found = stage.compute(slices, {}, lambda _: _ready(answers, length))
            seconds.append(time.perf_counter() - started)
            assert len(found) == shards and len(found[-1][0]) == answers
        for ours, theirs in pipes:
            ours.close()
            theirs.close()
        for worker in workers:
            worker.terminate()
            worker.join()
    return seconds[0], seconds[1]


def _ready(answers: int, length: int) -> list[Any]:
    from ratchet.components.types import Sample

    return [[Sample(tuple(range(length)), (-1.5,) * length, "end")] * answers]


def _answer(connection: Any, answers: int, length: int) -> None:
    """An engine process that answers at once."""
    import os
    import socket

    result = _ready(answers, length)
    connection.send("started")
    while True:
        try:
            connection.recv()
            connection.send(("result", (result, socket.gethostname(), os.getpid(), 0.0, 0.0)))
        except (EOFError, OSError):
            return


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
    parser.add_argument("--home", type=Path)
    parser.add_argument("--until")
    parser.add_argument("--shards", type=int)
    parser.add_argument("--engines", type=int, default=2)
    given = parser.parse_args()
    if given.shards:
        print({k: round(v, 2) for k, v in shards_overhead(given.shards, engines=given.engines).items()}, "ms")
    else:
        in_one_process(given.home, given.until)
    gc.freeze()  # as at the end of the `ratchet` command
