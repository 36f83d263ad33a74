"""Two processes at once: the second waits or refuses, and a holder that is killed leaves nothing to clear."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from components.errors import BusyError
from tasks.turns import held

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
