"""Worker node: runs this machine's ranks of multi-node training stages, and its engines of stages that sample
and score. `ratchet join` does so for all stages of a home; the flow `one_machine`, on a work pool, for one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ratchet.components.errors import StageError
from ratchet.components.recipes.profile import gpus_per_engine
from ratchet.tasks.machine.provenance import code_versions
from ratchet.tasks.process.engines import serve_job
from ratchet.tasks.process.ranks import JOB, Job, missing_devices, other_version, run_ranks


def join(home: Path, say: Callable[[str], None]) -> NoReturn:
    """Join every multi-node stage in `home` until interrupted. Messages go to `say`."""
    seen = set[str]()
    logging.disable(logging.ERROR)  # torch's launcher logs a lot when a rank fails
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    while True:
        for file, job in jobs(home.resolve()):
            if job.id in seen:
                continue
            seen.add(job.id)
            try:
                take_part(file, job, say)
            except StageError as error:
                say(str(error))
                if isinstance(error, Rejected):
                    continue
            break
        time.sleep(1.0)


class Rejected(StageError):
    """A stage cannot use this machine."""


def take_part(file: Path, job: Job, say: Callable[[str], None]) -> None:
    """Run this machine's part of the stage described in `file` until the stage ends. Messages go to `say`.
    `Rejected` if the machine cannot take part, `StageError` if its part failed.
    """
    from ratchet.tasks.process.launch import prepare, without_main

    name, what = f"{job.name} of {job.leader}", "engines" if job.key else "ranks"
    if wrong := rejection_reason(file, job):
        raise Rejected(f"{name} cannot use this machine: {wrong}")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its store: a stack trace without its leader
    prepare()
    log = str(Path(job.log).with_suffix(f".{socket.gethostname()}.log"))  # the disk may be shared
    say(f"{name}: {job.ranks_per_machine} of {job.ranks} {what} here (log: {log})")
    try:
        with without_main():
            say(f"{name}: {_serve_engines(job, log) if job.key else _run_ranks(job, log)}")
    except StageError as error:
        raise StageError(f"{name}: {error}") from None


def _serve_engines(job: Job, log: str) -> str:
    """Serve a stage until it ends; returns how that was. `StageError` if engines were killed."""
    try:
        killed = serve_job(job, log)
    except (OSError, EOFError, multiprocessing.AuthenticationError) as error:
        return f"ended without this machine ({type(error).__name__}: {error})"
    if killed:
        raise StageError(f"{killed} engines were killed (out of memory?)")
    return "done"


def _run_ranks(job: Job, log: str) -> str:
    """Run ranks until they end; returns how that was. `StageError` if they failed."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    handler = signal.getsignal(signal.SIGTERM)
    try:
        run_ranks(job, log)
        return "done"
    except ChildFailedError:
        raise StageError("failed") from None
    except RendezvousError as error:
        return f"continued or ended without this machine ({type(error).__name__})"
    except (SignalException, KeyboardInterrupt) as stopped:
        with contextlib.suppress(OSError):
            (job.reports / f"{socket.gethostname()}.left").touch()
        signal.signal(signal.SIGTERM, handler)
        if isinstance(stopped, SignalException):
            signal.raise_signal(signal.SIGTERM)  # to the handler of the command or of Prefect
        raise KeyboardInterrupt from None
    finally:  # the launcher leaves its own handler installed, which raises an exception nothing catches
        signal.signal(signal.SIGTERM, handler)


def jobs(home: Path) -> list[tuple[Path, Job]]:
    """Multi-node stages in a home, oldest first: of two waiting stages one gets all its machines."""
    found = []
    for file in (home / "store" / ".work").glob(f"*/{JOB}"):
        if (job := read_job(file)) is not None:
            found.append((file, job))
    return sorted(found, key=lambda pair: pair[1].since)


def read_job(file: Path) -> Job | None:
    """The stage that a file describes; None if it was just removed, or written by another version."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Job(**json.loads(file.read_text()))
    return None


def rejection_reason(file: Path, job: Job) -> str:
    """Why this machine cannot take part; empty if it can."""
    work = Path(job.request["work"])
    if work != file.parent:
        return (
            f"the home is {work.parents[2]} on {job.leader} and {file.parents[3]} here; the path must "
            "be the same on both"
        )
    try:
        host, port = job.endpoint.rsplit(":", 1)
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        return (
            f"{job.endpoint} does not answer ({error}); if that stage still waits, set RATCHET_ADDRESS on "
            "its machine to an address reachable from here"
        )
    if not job.key:  # ranks compare their versions themselves
        return missing_devices(job.ranks_per_machine)
    devices = job.ranks_per_machine * gpus_per_engine(job.request["options"]["profile"])
    return other_version(job.code, job.leader, code_versions()) or missing_devices(devices)
