"""`ratchet join`: run this machine's ranks of the multi-node stages of a home."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ratchet.tasks.process.ranks import JOB, Job, run_ranks, short_of_devices


def join(home: Path, say: Callable[[str], None]) -> NoReturn:
    """Take part in every stage in `home` that asks for machines, until interrupted. What there is to know goes to `say`."""
    from ratchet.tasks.process.launch import prepare

    seen = set[str]()
    logging.disable(logging.ERROR)  # the launcher has many words for a rank that failed,
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # and its store a stack trace for a leader that is gone
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    while True:
        for file, job in jobs(home.resolve()):
            if job.id in seen:
                continue
            seen.add(job.id)
            if wrong := unfit(file, job):
                say(f"{job.name} of {job.leader} goes without this machine: {wrong}")
                continue
            prepare()
            _take_part(job, say)
            break
        time.sleep(1.0)


def _take_part(job: Job, say: Callable[[str], None]) -> None:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    log = str(Path(job.log).with_suffix(f".{socket.gethostname()}.log"))  # a shared disk would mix the lines of two machines in one file
    say(f"{job.name} of {job.leader}: {job.each} of {job.ranks} ranks here (log: {log})")
    try:
        try:
            run_ranks(job, log)
        finally:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # the launcher leaves its own, whose exception nothing catches later
        say(f"{job.name} of {job.leader}: done")
    except ChildFailedError:
        say(f"{job.name} of {job.leader}: failed")
    except RendezvousError as error:
        say(f"{job.name} of {job.leader} went on or ended without this machine ({type(error).__name__})")
    except (SignalException, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            (job.reports / f"{socket.gethostname()}.left").touch()
        raise KeyboardInterrupt from None


def jobs(home: Path) -> list[tuple[Path, Job]]:
    """The multi-node stages of a home, the oldest first: so of two that wait, one gets all the machines it needs."""
    found = []
    for file in (home / "store" / ".work").glob(f"*/{JOB}"):
        with contextlib.suppress(OSError, ValueError, TypeError):  # just gone, or of another version
            found.append((file, Job(**json.loads(file.read_text()))))
    return sorted(found, key=lambda pair: pair[1].since)


def unfit(file: Path, job: Job) -> str:
    """Why this machine can take no part; empty when it can."""
    work = Path(job.request["work"])
    if work != file.parent:
        return f"the home is {work.parents[2]} on {job.leader} and {file.parents[3]} here; it must have the same path on both"
    try:
        host, port = job.endpoint.rsplit(":", 1)
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        return (f"{job.endpoint} does not answer ({error}); if that stage still waits, set RATCHET_ADDRESS where it runs to an address "
                "that this machine reaches")
    return short_of_devices(job.each)
