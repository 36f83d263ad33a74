"""Killed at any moment, a run continues and ends with the same weights, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from components.store import read_manifest
from tasks.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys
from pathlib import Path
from tasks.pipeline import Pipeline
pipeline = Pipeline.open(sys.argv[1], home=Path(sys.argv[2]), profile="test", overrides=sys.argv[3:])
for name in pipeline.stages:
    if name == "evaluate":
        break
    pipeline.make(name)
"""


def weights(home: Path, recipe: str, overrides: list[str], stage: str) -> dict[str, str]:
    manifest = read_manifest(Pipeline.open(recipe, home=home, profile="test", overrides=overrides).artifact(stage).path)
    assert manifest is not None
    return {name: entry["sha256"] for name, entry in manifest["files"].items() if name.endswith(".safetensors")}


@pytest.mark.parametrize(("recipe", "overrides", "stage", "at"), [
    ("sft", ["sft.limit=96", "sft.fit.save_every=2", "sft.fit.validate_every=2", "sft.fit.patience=0"], "sft", 4),
    ("rlvr_grpo", ["online.rounds=6", "online.fit.save_every=2"], "improve", 4),
])
def test_sigkill_in_training_changes_nothing(recipe: str, overrides: list[str], stage: str, at: int,
                                             fresh_home: Callable[[str], Path]) -> None:
    whole, broken = fresh_home("whole"), fresh_home("broken")
    command = [sys.executable, "-c", RUN, recipe]
    subprocess.run([*command, str(whole), *overrides], cwd=ROOT, check=True, capture_output=True)
    child = subprocess.Popen([*command, str(broken), *overrides], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = None
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.poll() is None:
        metrics = metrics or next((broken / "store" / ".work").glob(f"{stage}-*/product/metrics.jsonl"), None)
        if metrics and metrics.exists() and len(metrics.read_text().splitlines()) >= at:
            break
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not list((broken / "store").glob(f"{stage}-*")), "the kill came too late to test anything"
    assert list((broken / "store" / ".work").glob(f"{stage}-*/progress/checkpoint-*"))
    subprocess.run([*command, str(broken), *overrides], cwd=ROOT, check=True, capture_output=True)
    assert weights(whole, recipe, overrides, stage) == weights(broken, recipe, overrides, stage)
    lines = [json.loads(t) for t in next((broken / "store").glob(f"{stage}-*/metrics.jsonl")).read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), "a step is missing or stands twice"


def test_ctrl_c_stops_cleanly_and_the_same_command_continues(fresh_home: Callable[[str], Path]) -> None:
    whole, broken = fresh_home("whole"), fresh_home("broken")
    settings = ["sft.limit=96", "sft.fit.save_every=2", "sft.fit.validate_every=0"]

    def command(home: Path) -> list[str]:
        sets = [part for setting in settings for part in ("--set", setting)]
        return [sys.executable, "-m", "flows.cli", "run", "sft", "--profile", "cpu", "--until", "train", "--home", str(home), *sets]

    subprocess.run(command(whole), cwd=ROOT, check=True, capture_output=True)
    child = subprocess.Popen(command(broken), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and child.poll() is None:
        metrics = next((broken / "store" / ".work").glob("sft-*/product/metrics.jsonl"), None)
        if metrics and len(metrics.read_text().splitlines()) >= 4:
            break
        time.sleep(0.01)
    family = psutil.Process(child.pid).children(recursive=True)
    os.killpg(child.pid, signal.SIGINT)  # what a terminal does: everything in the foreground hears it
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "the same command continues from here" in said and "Traceback" not in said, said
    assert not psutil.wait_procs(family, timeout=10)[1], "a process was left behind"
    assert not list((broken / "store").glob("sft-*")), "the interrupt came too late to test anything"
    subprocess.run(command(broken), cwd=ROOT, check=True, capture_output=True)

    def trained(home: Path) -> list[str]:
        return [read_manifest(p)["files"]["model.safetensors"]["sha256"] for p in (home / "store").glob("sft-*")]  # type: ignore[index]

    assert len(trained(whole)) == 1 and trained(whole) == trained(broken)
