"""The faults of `make soak`: what each breaks, at which moment it can, and how it is mended.

A fault is two functions of the trial: `strike`, called again and again from the drawn moment on until it
returns what it broke, and `mend`, called before the run is resumed. A new kind is one more entry of `FAULTS`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from ratchet.tasks.process.orphans import marked

MARK = "RATCHET_SOAK"  # in the environment of every process of a trial: how its orphans are known
SMALL_DISK_MIB = 512


@dataclass
class Trial:
    """One disturbed run: home, process, servers, random generator."""

    home: Path
    mark: str
    random: Random
    process: subprocess.Popen[bytes] | None = None
    servers: Any = None
    notes: dict[str, Any] = field(default_factory=dict)

    def processes(self) -> list[int]:
        return marked(self.mark, MARK)


@dataclass(frozen=True)
class Fault:
    """`kills`: the run itself is killed, so that it says nothing. `servers`: it needs servers of ours to
    strike at. `engine`: it needs a profile whose stages start a vLLM (`engine: vllm` with `vllm.python`).
    """

    strike: Callable[[Trial], str | None]
    mend: Callable[[Trial], None] = lambda trial: None
    prepare: Callable[[Trial], None] = lambda trial: None
    kills: bool = False
    servers: bool = False
    engine: bool = False


# --- processes
# ------------------------------------------------------------------------------------------------------


def kill_flow(trial: Trial) -> str:
    assert trial.process is not None
    trial.process.kill()
    return f"flow {trial.process.pid}"


def kill_stage(trial: Trial) -> str | None:
    """A process that leads a session of its own below the flow is a stage (tasks/process/launch.py)."""
    assert trial.process is not None
    for pid in trial.processes():
        if pid != trial.process.pid and _session(pid) == pid and b"forkserver" in _command(pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                return f"stage process {pid}"
    return None


def kill_engine(trial: Trial) -> str | None:
    """Kill any process of a stage's vLLM: the HTTP server or an engine process."""
    alive = trial.processes()
    leaders = {pid for pid in alive if b"vllm.entrypoints" in _command(pid)}
    inside = sorted(pid for pid in alive if _session(pid) in leaders)
    if not inside:
        return None
    pid = trial.random.choice(inside)
    description = _said(pid)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    return f"engine {pid} ({description})"


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):  # gone meanwhile
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _said(pid: int) -> str:
    return _command(pid).replace(b"\0", b" ").decode(errors="replace").strip()[:60]


def _session(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return 0


def kill_server(name: str) -> Callable[[Trial], str]:
    def strike(trial: Trial) -> str:
        trial.servers.kill(name)
        return f"{name} server"

    return strike


def start_server(name: str) -> Callable[[Trial], None]:
    return lambda trial: trial.servers.start(name)


def cut(trial: Trial) -> str:
    trial.servers.gate.cut = True
    return "the way to MLflow"


def joined(trial: Trial) -> None:
    trial.servers.gate.cut = False


# --- the disk
# -------------------------------------------------------------------------------------------------------


def small_disk(trial: Trial) -> None:
    """Root gets a disk of its own for the home, in memory; others keep theirs and are limited in `fill`."""
    if os.geteuid():
        return
    kept = {p.name: p for p in trial.home.iterdir()}
    aside = trial.home.with_name(trial.home.name + ".aside")
    trial.home.rename(aside)
    trial.home.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MIB}m", "ratchet-soak", trial.home], check=True
    )
    trial.notes["mounted"] = True
    for name in kept:
        subprocess.run(["cp", "-a", aside / name, trial.home / name], check=True)
    subprocess.run(["rm", "-r", aside], check=True)


def fill(trial: Trial) -> str:
    """To the last byte; without root: no file of the run's processes may grow any more (RLIMIT_FSIZE)."""
    if not trial.notes.get("mounted"):
        for pid in trial.processes():
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (1024, 1024))
        return "no file may grow"
    with (trial.home / "ballast").open("wb") as ballast:
        size = 1 << 20
        while size:
            try:
                os.write(ballast.fileno(), bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
    return "the disk is full"


def free(trial: Trial) -> None:
    (trial.home / "ballast").unlink(missing_ok=True)


def unmount(trial: Trial) -> None:
    if trial.notes.pop("mounted", False):
        subprocess.run(["umount", "-l", trial.home], check=True)


# --- bytes
# ----------------------------------------------------------------------------------------------------------


def flip(*patterns: str) -> Callable[[Trial], str | None]:
    """Kill the run once a file of these names lies in its home, and change one byte of one of them. Not of a
    finished run, which is on its way out: nothing will read it again, so nothing can notice.
    """

    def strike(trial: Trial) -> str | None:
        if not _found(trial.home, patterns) or _finished(trial.home):
            return None
        killed = kill_flow(trial)
        wait_for_none(trial)
        if _finished(trial.home):
            return f"{killed}, which had just finished"
        files = _found(trial.home, patterns)
        if not files:
            return None
        file = trial.random.choice(files)
        at = trial.random.randrange(file.stat().st_size)
        with file.open("r+b") as bytes_:
            bytes_.seek(at)
            old = bytes_.read(1)
            bytes_.seek(at)
            bytes_.write(bytes([old[0] ^ (1 << trial.random.randrange(8))]))
        trial.notes["damaged"] = file
        return f"byte {at} of {file.relative_to(trial.home)}"

    return strike


def _finished(home: Path) -> bool:
    return any(
        json.loads(file.read_text())["state"] == "finished" for file in (home / "runs").glob("*/run.json")
    )


def _found(home: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(
        p
        for pattern in patterns
        for p in (home / "store").glob(pattern)
        if p.is_file()
        and p.stat().st_size
        and not any(part.startswith(".") and part != ".work" for part in p.relative_to(home).parts)
    )


def wait_for_none(trial: Trial, seconds: float = 20.0) -> list[str]:
    """(pid, command) of trial processes that outlive their time limit; they are then killed."""
    end = time.monotonic() + seconds
    while (left := trial.processes()) and time.monotonic() < end:
        if trial.process is not None:
            trial.process.poll()
        time.sleep(0.1)
    descriptions = [f"{pid} ({_said(pid)})" for pid in left]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return descriptions


FAULTS: dict[str, Fault] = {
    "flow": Fault(kill_flow, kills=True),
    "stage": Fault(kill_stage),
    "engine": Fault(kill_engine, engine=True),
    "prefect": Fault(kill_server("prefect"), start_server("prefect"), servers=True),
    "mlflow": Fault(kill_server("mlflow"), start_server("mlflow"), servers=True),
    "network": Fault(cut, joined, servers=True),
    "disk": Fault(fill, free, small_disk),
    "checkpoint": Fault(flip(".work/*/progress/checkpoint-*/*"), kills=True),
    "parquet": Fault(flip("*/*.parquet"), kills=True),
    "download": Fault(flip("raw-*/source*", "raw-*/source/**/*"), kills=True),
}


@contextlib.contextmanager
def prepared(fault: Fault, trial: Trial) -> Iterator[None]:
    """Cleans up its RAM disk even if the soak is ended with SIGTERM."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        fault.prepare(trial)
        yield
    finally:
        unmount(trial)
        signal.signal(signal.SIGTERM, before)
