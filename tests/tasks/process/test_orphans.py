"""Child processes end with the run, even if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ratchet.tasks.process.orphans import MARK, marked

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = f"""
import os, subprocess, sys, time
if sys.argv[1] == "guarded":
    from ratchet.tasks.process.orphans import reap_children_on_exit
    reap_children_on_exit()
print(os.environ.get({MARK!r}, ""), subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
time.sleep(600)
"""  # noqa: E501


@pytest.mark.parametrize("how", ["guarded", "unguarded"])
def test_killed_run_leaves_no_child_process(how: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, how], cwd=ROOT, text=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    *mark, child = process.stdout.readline().split()
    end = time.monotonic() + 10
    while mark and int(child) not in marked(mark[0]):  # while it starts, its environment is still empty
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    end = time.monotonic() + (30 if how == "guarded" else 1)
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    left = Path(f"/proc/{child}").exists()
    if left:
        os.kill(int(child), signal.SIGKILL)
    assert left == (how == "unguarded"), "without the guard the child stays, with it it goes"


LOADING = """
import os, sys, ratchet.tasks.process.launch
ratchet.tasks.process.launch.PRELOAD[:] = ["slow_to_load"]
from ratchet.flows.startup import servers
with servers(fork_server=True):
    from multiprocessing.forkserver import _forkserver
    print(_forkserver._forkserver_pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_loading_fork_server_exits_with_its_killed_flow(tmp_path: Path) -> None:
    """By itself it would look for its parent only once torch and the rest are loaded: half a minute on a busy
    machine.
    """
    (tmp_path / "slow_to_load.py").write_text("import time\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", LOADING],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'infra' / 'package'}",
            "PREFECT_API_URL": "http://127.0.0.1:9/api",
        },
    )
    assert process.stdout is not None
    server = int(process.stdout.readline())
    assert process.wait(60) == -signal.SIGKILL
    end = time.monotonic() + 20
    while (alive := Path(f"/proc/{server}").exists()) and time.monotonic() < end:
        time.sleep(0.05)
    if alive:
        os.kill(server, signal.SIGKILL)
    assert not alive
