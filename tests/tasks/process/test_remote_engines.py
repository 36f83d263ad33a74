"""Stages that sample on engines of two simulated machines: `launch` here, `ratchet join` elsewhere."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile
from ratchet.components.stages.run import as_request
from ratchet.components.types import Artifact
from ratchet.tasks.process.engines import accept_engines
from ratchet.tasks.process.joining import jobs, rejection_reason
from ratchet.tasks.process.launch import launch
from ratchet.tasks.process.ranks import JOB

ROOT = Path(__file__).resolve().parents[3]
LONG = 120.0


def sampling(home: Path, inputs: dict[str, Artifact], machines: int, tokens: int = 12) -> dict[str, Any]:
    """16 prompts of 4 answers, 8 at a time: 8 slices."""
    work = home.resolve() / "store" / ".work" / f"rollout-{machines}"
    for folder in ("product", "progress"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    profile = Profile(learner="deepspeed", threads=1, max_num_seqs=8, ranks=machines, machines=machines)
    options = {
        "seed": 0,
        "round": 1,
        "profile": plain(profile),
        "data": "sft",
        "prompts": {"name": "uniform"},
        "prompts_per_round": 16,
        "rounds": 1,
        "rollout": {"name": "sample", "responses_per_prompt": 4, "max_tokens": tokens},
    }
    return as_request("rollout", options, inputs, work)


def table(request: dict[str, Any]) -> bytes:
    return (Path(request["work"]) / "product" / "groups.parquet").read_bytes()


def until(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LONG
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """`ratchet join` for the home `tmp_path`; its output is in `join.out`."""
    monkeypatch.setenv("RATCHET_ADDRESS", "127.0.0.1")
    with (tmp_path / "join.out").open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ratchet.flows.cli", "join", "--home", str(tmp_path)],
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "infra" / "package")},
        )
    yield process
    process.kill()
    process.wait()


def remote_log(folder: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (folder / f"log.{socket.gethostname()}.log").read_text()
    return ""


@pytest.mark.parametrize("lost", ["machine", "engine"])
def test_two_machines_sample_what_one_does_and_go_on_when_one_leaves(
    lost: str, joined: subprocess.Popen[str], inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    alone, log = sampling(tmp_path, inputs, 1, tokens=60), tmp_path / "log"
    launch(alone, log)
    together = sampling(tmp_path, inputs, 2, tokens=60)
    engine = threading.Event()  # holds the engine of this machine until the other one has joined

    def hold() -> None:
        pid = until(lambda: log.exists() and re.findall(r"engine 1 of 1: process (\d+)", log.read_text()))[-1]
        os.kill(int(pid), signal.SIGSTOP)
        engine.wait(LONG)
        os.kill(int(pid), signal.SIGCONT)

    def leave() -> None:
        slices = Path(together["work"]) / "progress" / "shards"
        until(lambda: remote_log(tmp_path) and len(list(slices.glob("*.json"))) >= 1)
        if lost == "machine":
            joined.send_signal(signal.SIGTERM)
        else:
            (pid,) = re.findall(r"engine 1 of 1: process (\d+)", remote_log(tmp_path))
            os.kill(int(pid), signal.SIGKILL)
        engine.set()

    threads = [threading.Thread(target=one) for one in (hold, leave)]
    for thread in threads:
        thread.start()
    found = launch(together, log)
    for thread in threads:
        thread.join()
    assert table(together) == table(alone) and found["counts"]["responses"] == 64
    assert not (Path(together["work"]) / JOB).exists()
    if lost == "engine":
        until(lambda: "1 engines were killed" in (tmp_path / "join.out").read_text())
        joined.send_signal(signal.SIGTERM)
    assert joined.wait(LONG) == 130
    said = (tmp_path / "join.out").read_text()
    assert "stage 'rollout'" in said and "1 of 2 engines here" in said and "Stopped." in said, said
    assert "an engine on 127.0.0.1 joined" in log.read_text()
    assert re.search(r"engine 1 of 1: process \d+", remote_log(tmp_path))


def test_engines_need_the_key_and_the_same_code(
    inputs: dict[str, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_ADDRESS", "127.0.0.1")
    request = sampling(tmp_path, inputs, 2)
    with accept_engines(request, str(tmp_path / "log")) as arrivals:
        assert arrivals is not None
        ((file, job),) = jobs(tmp_path)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and job.key not in repr(job)
        host, port = job.endpoint.split(":")
        with pytest.raises(multiprocessing.AuthenticationError):
            Client((host, int(port)), authkey=b"guessed")
        assert rejection_reason(file, job) == ""  # looks at the port and leaves
        with Client((host, int(port)), authkey=job.key.encode()) as ours, arrivals.take() as theirs:
            ours.send("here")
            assert theirs.recv() == "here"
        other = json.loads(file.read_text())
        other["code"]["torch"] = "1.0"
        file.write_text(json.dumps(other))
        assert re.match(
            r"torch is 1\.0 on \S+ and \S+ on \S+; all machines of a stage need the same version",
            rejection_reason(file, jobs(tmp_path)[0][1]),
        )
    assert not file.exists()


def test_one_machine_and_other_stages_accept_no_engines(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    with accept_engines(sampling(tmp_path, inputs, 1), "log") as arrivals:
        assert arrivals is None and not jobs(tmp_path)
    profile = plain(Profile(machines=2, ranks=2, learner="deepspeed"))
    with accept_engines({"does": "sft", "options": {"profile": profile}}, "log") as arrivals:
        assert arrivals is None
