"""A run killed at any step resumes and ends with bit-identical weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ratchet.components.storage.store import read_manifest
from ratchet.tasks.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys
from pathlib import Path
from ratchet.tasks.pipeline import Pipeline
pipeline = Pipeline.open(sys.argv[1], home=Path(sys.argv[2]), profile="test", overrides=sys.argv[3:])
for name in pipeline.stages:
    if pipeline.stages[name].part == "evaluate":
        break
    pipeline.make(name)
"""


def weights(
    home: Path, recipe: str, overrides: list[str], stage: str, profile: str = "test"
) -> dict[str, str]:
    manifest = read_manifest(
        Pipeline.open(recipe, home=home, profile=profile, overrides=overrides).artifact(stage).path
    )
    assert manifest is not None
    return {
        name: entry["sha256"] for name, entry in manifest["files"].items() if name.endswith(".safetensors")
    }


@pytest.mark.parametrize(
    ("recipe", "overrides", "stage", "at"),
    [
        (
            "sft",
            ["sft.limit=96", "sft.fit.save_every=2", "sft.fit.validate_every=2", "sft.fit.patience=0"],
            "sft",
            4,
        ),
        pytest.param(
            "rlvr_grpo",
            ["online.rounds=6", "online.fit.save_every=2"],
            "improve",
            4,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sigkill_in_training_changes_nothing(
    recipe: str, overrides: list[str], stage: str, at: int, fresh_home: Callable[[str], Path]
) -> None:
    whole = fresh_home("whole")
    broken = whole.parent / "broken"
    pipeline = Pipeline.open(recipe, home=whole, profile="test", overrides=overrides)
    for name in pipeline.stages:
        if name == stage:
            shutil.copytree(whole, broken, symlinks=True)
        if pipeline.stages[name].part != "evaluate":
            pipeline.make(name)
    command = [sys.executable, "-c", RUN, recipe, str(broken), *overrides]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert weights(whole, recipe, overrides, stage) == weights(broken, recipe, overrides, stage)
    lines = [
        json.loads(t)
        for t in next((broken / "store").glob(f"{stage}-*/metrics.jsonl")).read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), (
        "a step is missing or stands twice"
    )


def in_a_terminal(command: list[str]) -> subprocess.Popen[str]:
    """Start a command as a process group that obeys Ctrl-C."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_ctrl_c_while_servers_start_stops_without_a_traceback(fresh_home: Callable[[str], Path]) -> None:
    command = [sys.executable, "-m", "ratchet.flows.cli", "run", "sft", "--profile", "cpu"]
    child = in_a_terminal([*command, "--home", str(fresh_home("home"))])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(
        "forkserver" in " ".join(process.cmdline()) for process in psutil.Process(child.pid).children()
    ):
        time.sleep(0.01)
    time.sleep(0.3)  # the fork server imports torch now
    os.killpg(child.pid, signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 130, output
    assert "the same command resumes" in output and "Traceback" not in output, output


@pytest.mark.slow  # over a minute: two runs by the command line
def test_ctrl_c_stops_cleanly_and_the_same_command_continues(fresh_home: Callable[[str], Path]) -> None:
    home = fresh_home("home")
    settings = ["sft.limit=96", "sft.fit.save_every=2", "sft.fit.validate_every=0"]
    command = [
        sys.executable,
        "-m",
        "ratchet.flows.cli",
        "run",
        "sft",
        "--profile",
        "cpu",
        "--until",
        "train",
        "--home",
        str(home),
        *(part for setting in settings for part in ("--set", setting)),
    ]
    child = in_a_terminal(command)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and child.poll() is None:
        metrics = next((home / "store" / ".work").glob("sft-*/product/metrics.jsonl"), None)
        if metrics and len(metrics.read_text().splitlines()) >= 4:
            break
        time.sleep(0.01)
    family = psutil.Process(child.pid).children(recursive=True)
    os.killpg(child.pid, signal.SIGINT)  # what a terminal does: everything in the foreground hears it
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 130, output
    assert "the same command resumes" in output and "Traceback" not in output, output
    assert not psutil.wait_procs(family, timeout=10)[1], "a process was left behind"
    assert not list((home / "store").glob("sft-*")), "the interrupt came too late to test anything"
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    digest = weights(home, "sft", settings, "sft", "cpu")
    shutil.rmtree(next((home / "store").glob("sft-*")))
    Pipeline.open("sft", home=home, profile="cpu", overrides=settings).make("sft")  # at one go
    assert digest and digest == weights(home, "sft", settings, "sft", "cpu")
