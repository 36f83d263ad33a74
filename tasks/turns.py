"""Whose turn it is: a run is made by one process at a time, and runs share the GPUs by counted slots.

A run, the registry and the DVC workspace are held by `flock` on a file: the kernel frees it when its holder dies,
SIGKILL included, so nothing is ever left to clear by hand. (Stages that two runs share are held by the store itself.)
GPU slots are a global concurrency limit of the Prefect server, which sees all machines; so is the registry's turn among
workers that share no disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from components.errors import BusyError, ServiceError
from components.store import disk_errors

log = logging.getLogger("ratchet.turns")

IfRunning = Literal["wait", "refuse"]
REGISTRY = "ratchet-registry"  # the limit that `ratchet deploy` makes for the model registry
LEASE_SECONDS = 90.0  # the slots of a holder that was killed come back within this and the server's next look (15 s)


@contextlib.contextmanager
def held(lock: Path, what: str, if_running: IfRunning = "wait") -> Iterator[None]:
    """Hold the file `lock` for this process alone. Another holder is waited for, or refused with `BusyError`.

    The file says who holds it, for people; only the kernel's lock counts. A stage's process does not inherit it.
    """
    with disk_errors(f"taking {lock}"):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(lock)
            if if_running == "refuse":
                raise BusyError(f"{what} is held by {holder}; wait for it to end, or let this one wait (if_running: wait)") from None
            log.warning("%s is held by %s; waiting for it", what, holder)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S%z")}))
        file.flush()
        yield


def gpu_slots(count: int) -> contextlib.AbstractContextManager[None]:
    """Hold `count` slots of the Prefect server's limit `gpu`, waiting for them; 0 asks nobody."""
    return slots("gpu", count) if count else contextlib.nullcontext()


@contextlib.contextmanager
def slots(name: str, count: int) -> Iterator[None]:
    """Hold `count` slots of a limit, waiting for them. Raises `ServiceError` where the server has none of that name or is away.

    A server that goes away later stops nothing: the slots are then given back too early, the work goes on.
    """
    from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
    from prefect.concurrency.sync import concurrency

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(concurrency(name, occupy=count, lease_duration=LEASE_SECONDS, strict=True,
                                            raise_on_lease_renewal_failure=False))
        except ConcurrencySlotAcquisitionError as error:
            raise ServiceError(f"no {count} slots of {name!r} from the Prefect server: {error}; `ratchet deploy` makes them") from error
        yield


@contextlib.contextmanager
def registry_turn(home: Path) -> Iterator[None]:
    """Hold the model registry: aliases are read before they move, and runs that share a checkpoint would register it twice.

    A file keeps the processes of one home apart; homes that share an MLflow server need a Prefect server too (`PREFECT_API_URL`)
    which `ratchet deploy` has prepared. Without one the file is all, and the log says so.
    """
    with held(home / "registry.lock", "the model registry"), contextlib.ExitStack() as stack:
        try:
            if "PREFECT_API_URL" not in os.environ:
                raise ServiceError("PREFECT_API_URL names no server")
            stack.enter_context(slots(REGISTRY, 1))
        except ServiceError as error:
            log.debug("the model registry is held in %s alone: %s", home, error)
        yield


def _holder(lock: Path) -> str:
    try:
        said = json.loads(lock.read_text())
        return f"process {said['pid']} on {said['host']} since {said['since']}"
    except (OSError, ValueError, KeyError):  # it is just being written
        return "another process"
