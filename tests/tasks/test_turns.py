"""Two processes at once: the second waits or refuses, and a holder that is killed leaves nothing to clear."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from components.errors import BusyError
from tasks.turns import REGISTRY, gpu_slots, held, registry_turn

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from pathlib import Path
from tasks.turns import held
with held(Path(sys.argv[1]), "run toy"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds `tmp_path/lock`."""
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()


def test_a_second_process_refuses_and_says_who_holds(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(BusyError, match=rf"run toy is held by process {holder.pid} on .* since 20"), \
            held(tmp_path / "lock", "run toy", "refuse"):
        pass


def test_a_second_process_waits_until_the_first_is_killed(holder: subprocess.Popen[str], tmp_path: Path,
                                                          caplog: pytest.LogCaptureFixture) -> None:
    killed_at: list[float] = []

    def kill() -> None:
        killed_at.append(time.monotonic())
        os.kill(holder.pid, signal.SIGKILL)

    killer = threading.Timer(0.5, kill)
    killer.start()
    with held(tmp_path / "lock", "run toy"):
        assert killed_at and time.monotonic() - killed_at[0] < 5, "it did not wait, or a dead holder kept the lock"
        assert f"held by process {holder.pid}" in caplog.text and "waiting" in caplog.text
        assert f'"pid": {os.getpid()}' in (tmp_path / "lock").read_text()
    killer.join()


def test_a_stage_process_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with held(tmp_path / "lock", "run toy"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with held(tmp_path / "lock", "run toy", "refuse"):  # raises BusyError where the child kept it
            assert child.poll() is None, "the child ended too early to test anything"
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(("address", "refused", "asked"), [
    (None, False, []), ("http://prefect/api", True, [REGISTRY]), ("http://prefect/api", False, [REGISTRY])])
def test_the_registry_waits_at_the_prefect_server_where_it_can(address: str | None, refused: bool, asked: list[str], tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without a server, or with one that has no such limit, the file is all, which the log says once."""
    from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError

    held_now, names = [], []

    @contextlib.contextmanager
    def concurrency(name: str, occupy: int, strict: bool, **_: Any) -> Iterator[None]:
        names.append(name)
        if refused:
            raise ConcurrencySlotAcquisitionError("must be created before")
        held_now.append(name)
        yield
        held_now.remove(name)

    monkeypatch.setattr("prefect.concurrency.sync.concurrency", concurrency)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    if address:
        monkeypatch.setenv("PREFECT_API_URL", address)
    with caplog.at_level("DEBUG", "ratchet.turns"), registry_turn(tmp_path):
        assert names == asked and held_now == ([] if refused else asked)
        with pytest.raises(BusyError), held(tmp_path / "registry.lock", "the model registry", "refuse"):
            pass
    assert not held_now and caplog.text.count("is held in") == (1 if refused or not address else 0)


class Limit:
    """A limit of a Prefect server with two slots. Who waits five seconds for some would wait for ever."""

    def __init__(self) -> None:
        self.free, self.given_back = 2, threading.Condition()

    @contextlib.contextmanager
    def __call__(self, name: str, occupy: int, **_: Any) -> Iterator[None]:
        with self.given_back:
            assert self.given_back.wait_for(lambda: self.free >= occupy, 5), f"{occupy} slots of {name}, {self.free} free: a deadlock"
            self.free -= occupy
        try:
            yield
        finally:
            with self.given_back:
                self.free += occupy
                self.given_back.notify_all()


@pytest.fixture
def lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """lead("home", gpus=2) -> [{stage: slots in use while it is made}], of runs at once whose rollouts are made elsewhere on one GPU."""
    flow, limit, meet, used = importlib.import_module("flows.post_training"), Limit(), threading.Barrier(2), dict[str, dict[str, int]]()

    def make(pipeline: Any, name: str) -> None:
        there = pipeline.stages[name].does in pipeline.elsewhere
        if there and len(used) == 2:
            meet.wait(60)  # both leaders have come as far
        with gpu_slots(1 if there else 0):
            used[pipeline.store.home.name][name] = 2 - limit.free

    monkeypatch.setattr("prefect.concurrency.sync.concurrency", limit)
    monkeypatch.setattr(flow, "watched", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(flow, "watch_data", lambda _: None)
    monkeypatch.setattr(flow, "online_round", flow.online_round.fn)
    monkeypatch.setattr(flow, "make", make)

    def run(*homes: str, gpus: int) -> list[dict[str, int]]:
        used.update({home: {} for home in homes})
        options = {"profile": "test", "until": "train", "gpus": gpus, "artifacts": str(tmp_path), "elsewhere": {"rollout": "one_stage/x"}}
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(flow.post_training.fn, "online_dpo", home=str(tmp_path / home), **options) for home in homes]:
                done.result()
        return [used[home] for home in homes]

    return run


def test_a_leader_holds_slots_for_what_is_made_here_alone(lead: Callable[..., Any]) -> None:
    (used,) = lead("home", gpus=2)
    assert used["rollout_1"] == used["rollout_2"] == 1, "the leader kept its own while another worker wanted one"
    assert used["reward"] == used["annotate_1"] == used["optimise_2"] == 2 and used["raw"] == used["curated"] == 0


def test_two_leaders_do_not_wait_for_each_other_for_ever(lead: Callable[..., Any]) -> None:
    one, two = lead("one", "two", gpus=1)
    assert one.keys() == two.keys() and min(one["optimise_2"], two["optimise_2"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("if_running", ["wait", "refuse"])
def test_two_runs_of_one_recipe(if_running: str, fresh_home: Callable[[str], Path]) -> None:
    """The command as a user types it, twice at once: one product, and the second waits or says in one sentence why not."""
    home = fresh_home("two")
    command = [sys.executable, "-m", "flows.cli", "run", "sft", "--profile", "test", "--home", str(home), "--set", "sft.limit=32",
               "--set", "evaluate.prompts=4", "--until", "train", "--if-running", if_running]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_API", "MLFLOW_TRACKING"))} | {"PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(command, cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(home.glob("runs/*/run.json")):
        time.sleep(0.05)
    second = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True)
    said, _ = first.communicate()
    assert first.returncode == 0, said
    if if_running == "refuse":
        assert second.returncode == 1 and "error: run sft-" in second.stderr and f"process {first.pid}" in second.stderr
    else:
        assert second.returncode == 0 and f"held by process {first.pid}" in second.stderr, second.stdout + second.stderr
    assert len(list((home / "store").glob("sft-*"))) == 1 and not list((home / "store").glob(".replaced-*"))
