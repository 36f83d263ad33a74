"""Stages in child processes: errors are passed on, deaths reported, nothing is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ratchet.components.errors import SourceError, StageError
from ratchet.components.stages.run import as_request
from ratchet.tasks.process.launch import ENVIRONMENT, PRELOAD, launch


def test_error_of_the_child_is_raised_in_the_parent(tmp_path: Path) -> None:
    request = as_request(
        "fetch_data", {"source": f"path:{tmp_path}/none.jsonl", "sha256": None}, {}, tmp_path / "work"
    )
    with pytest.raises(SourceError, match=r"none\.jsonl"):
        launch(request, tmp_path / "log")
    assert "Traceback" in (tmp_path / "log").read_text()


def test_a_stage_returns_its_meta(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("{}\n")
    (tmp_path / "work" / "progress").mkdir(parents=True)
    request = as_request(
        "fetch_data", {"source": f"path:{tmp_path}/data.jsonl", "sha256": None}, {}, tmp_path / "work"
    )
    assert launch(request, tmp_path / "log")["source"].endswith("data.jsonl")
    assert (tmp_path / "work" / "product" / "source.jsonl").read_text() == "{}\n"


def test_freed_memory_is_kept_by_the_stage_process() -> None:
    """Freed memory is reused without new page faults."""
    again = (
        "import ctypes, resource; c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; n = 64 << 20\n"
        "def use(): p = ctypes.c_void_p(c.malloc(n)); c.memset(p, 1, n); c.free(p)\n"
        "use(); before = resource.getrusage(0).ru_minflt; use(); print(resource.getrusage(0).ru_minflt - "
        "before)"
    )
    faults = [
        int(
            subprocess.run(
                [sys.executable, "-c", again],
                env={**os.environ, **more},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for more in ({}, ENVIRONMENT)
    ]
    assert faults[0] > 1000 > 10 * faults[1], faults


def test_openmp_busy_wait_is_limited() -> None:
    """The busy-wait limit must reach the OpenMP runtime that torch loads."""
    shown = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env={**os.environ, **ENVIRONMENT, "OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
    )
    assert f"GOMP_SPINCOUNT = '{ENVIRONMENT['GOMP_SPINCOUNT']}'" in shown.stderr


@pytest.mark.parametrize(
    ("own", "left_out"),
    [({}, set()), ({"GLIBC_TUNABLES": "mine", "OMP_WAIT_POLICY": "ACTIVE"}, set(ENVIRONMENT))],
)
def test_user_environment_variables_override_the_stages(
    tmp_path: Path, own: dict[str, str], left_out: set[str]
) -> None:
    """And the flow's own stays as it was."""
    code = """
import multiprocessing.forkserver, os, time
from pathlib import Path
from ratchet.tasks.process import launch
before = dict(os.environ)
launch.PRELOAD.clear()
launch.prepare()
assert dict(os.environ) == before
environ = Path(f"/proc/{multiprocessing.forkserver._forkserver._forkserver_pid}/environ")
while not (shown := environ.read_text()):  # empty while the process starts its program
    time.sleep(0.01)
print(shown.replace(chr(0), chr(10)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **own}, capture_output=True, text=True, check=True
    )
    known = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert {
        name for name, value in ENVIRONMENT.items() if known.get(name) != value.split(":")[0]
    } == left_out  # glibc cuts at each colon what it has read
    assert known.items() >= own.items()


def test_fork_server_does_not_initialise_cuda() -> None:
    """A process that has initialised CUDA must not fork: CUDA fails in its children."""
    program = (
        "import importlib, torch\n"
        "def asked(*_, **__): raise SystemExit('asked for a GPU')\n"
        "for name in ('is_available', 'device_count', 'init', '_lazy_init', 'current_device', "
        "'get_device_capability'):\n"
        "    setattr(torch.cuda, name, asked)\n"
        f"for name in {PRELOAD}: importlib.import_module(name)\n"
        "print('all imported')\n"
        "torch.cuda.is_available()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "all imported\n" and "asked for a GPU" in done.stderr, done.stderr


SPY = """
import os, subprocess
import ratchet.components.stages.run, ratchet.tasks.process.launch
def execute(request):
    from ratchet.components.training import ranks
    return {"process": os.getpid(), "sees": ranks.gather(subprocess.run("echo $CUDA_VISIBLE_DEVICES", shell=True, capture_output=True, text=True).stdout)}
ratchet.components.stages.run.execute = execute
ratchet.tasks.process.launch.PRELOAD[:] = ["spy"]
"""  # noqa: E501
STAGES = """
import json, os, sys
from pathlib import Path
import spy
from ratchet.tasks.process.launch import launch
fit = {"fit": {}, "profile": {"ranks": 2}}
for options, given in [({}, {}), ({}, {"devices": ("1",)}), ({}, {}), ({}, {"inline": True}), ({}, {"inline": True, "devices": ("GPU-3", "GPU-2")}),
                       (fit, {"devices": ("0", "1")})]:
    result = launch({"does": "sft", "options": options, "work": sys.argv[1]}, Path(sys.argv[1], "log"), **given)
    print(json.dumps([result["process"] == os.getpid(), *map(str.strip, result["sees"])]))
print(json.dumps(os.environ["CUDA_VISIBLE_DEVICES"]))
"""  # noqa: E501


def test_stage_and_its_children_see_only_its_gpus(tmp_path: Path) -> None:
    """Without any, those that the flow sees; the next stage of the same fork server sees nothing of it.
    `inline` gives way.
    """
    (tmp_path / "spy.py").write_text(SPY)
    root = Path(__file__).resolve().parents[3]
    env = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{root / 'infra' / 'package'}",
        "CUDA_VISIBLE_DEVICES": "0,1,2",
    }
    done = subprocess.run(
        [sys.executable, "-c", STAGES, str(tmp_path)], cwd=root, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [False, "0,1,2"],
        [False, "1"],
        [False, "0,1,2"],
        [True, "0,1,2"],
        [False, "GPU-3,GPU-2"],
        [False, "0,1", "0,1"],
        "0,1,2",
    ]


def test_a_killed_stage_is_a_retryable_error_that_names_the_signal(tmp_path: Path) -> None:
    (tmp_path / "work" / "product").mkdir(parents=True)
    request = as_request("make_tiny", {"source": "generate:tiny?steps=100000"}, {}, tmp_path / "work")

    def kill() -> None:
        while not multiprocessing.active_children():
            time.sleep(0.05)
        time.sleep(1.0)
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(StageError, match=r"SIGKILL.*memory") as caught:
        launch(request, tmp_path / "log")
    killer.join()
    assert caught.value.retryable and not multiprocessing.active_children()


def test_interrupt_ends_the_child(tmp_path: Path) -> None:
    (tmp_path / "work" / "product").mkdir(parents=True)
    request = as_request("make_tiny", {"source": "generate:tiny?steps=100000"}, {}, tmp_path / "work")
    ticks = []

    def tick() -> None:
        ticks.append(1)
        if len(ticks) > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(request, tmp_path / "log", tick=tick)
    assert not multiprocessing.active_children()
