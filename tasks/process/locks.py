"""Run locks and GPU allocation.

Runs, the registry, the DVC workspace and GPUs are locked with `flock` (filelock): the kernel releases the
lock when the holder dies, so stale locks do not exist. (Stages shared by two runs are locked by the store.)
The number of GPU slots is a global concurrency limit of the Prefect server, across machines; the machine then
picks the GPUs. The registry lock of workers without a shared disk is such a limit too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from ratchet.components.errors import BusyError, RecipeError, ServiceError, StoreError
from ratchet.components.storage.store import disk_errors
from ratchet.tasks.machine.system import visible_gpus

log = logging.getLogger("ratchet.locks")

IfRunning = Literal["wait", "refuse"]
REGISTRY = "ratchet-registry"  # concurrency limit of the model registry, created by `ratchet deploy`
GPU_LOCKS = Path("/tmp/ratchet-gpus")  # shared by all users; TMPDIR may be private
LOOK_SECONDS = 1.0  # between polls for free GPUs
LEASE_SECONDS = 90.0  # slots of a killed holder are released after this and the server's next check (15 s)


@contextlib.contextmanager
def file_lock(lock: Path, what: str, if_running: IfRunning = "wait") -> Iterator[None]:
    """Hold an exclusive file lock. If it is held, wait, or raise `BusyError` (`if_running="refuse"`).

    The file's content names the holder, for messages only. Stage processes do not inherit the lock.
    """
    with disk_errors(f"taking {lock}"):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = FileLock(lock, thread_local=False)
        try:
            file.acquire(timeout=0)
        except Timeout:
            holder = _holder(lock)
            if if_running == "refuse":
                raise BusyError(
                    f"{what} is locked by {holder}; wait for it to end, or use `if_running: wait`"
                ) from None
            log.warning("%s is locked by %s; waiting for it", what, holder)
            file.acquire(poll_interval=0.2)
    try:
        _write_holder(lock)
        yield
    finally:
        file.release()


@contextlib.contextmanager
def gpu_slots(count: int) -> Iterator[tuple[str, ...]]:
    """Acquire `count` slots of the Prefect concurrency limit `gpu` and as many GPUs of this machine, waiting
    for them; 0 is a no-op.

    Yields the value for CUDA_VISIBLE_DEVICES as a tuple, empty if the machine has no GPU (slots are counted
    nevertheless). `RecipeError` if the machine has fewer GPUs; also raises what `slots` raises.
    """
    if not count:
        yield ()
        return
    here = visible_gpus()
    if here and count > len(here):
        raise RecipeError(
            f"`gpus: {count}`, but this machine has {len(here)} ({', '.join(here.values())}; "
            f"CUDA_VISIBLE_DEVICES limits them, if set); request at most {len(here)}"
        )
    with slots("gpu", count), lock_gpus(here, count if here else 0) as given:
        yield given


@contextlib.contextmanager
def lock_gpus(here: Mapping[str, str], count: int) -> Iterator[tuple[str, ...]]:
    """Lock `count` of the GPUs `here` (`visible_gpus`) and yield their names for CUDA_VISIBLE_DEVICES.

    All or none, so that waiting processes hold nothing. Of two competing processes one succeeds, since both
    try GPUs in the same order and release all when there are too few.
    """
    logged = False
    while True:
        with contextlib.ExitStack() as files:
            given, busy = _free(here, count, files)
            if len(given) == count:
                yield given
                return
        if not logged:
            holders = ", ".join(f"{here[gpu]} is locked by {_holder(_gpu_lock(gpu))}" for gpu in busy)
            log.warning("waiting for %d of the GPUs %s: %s", count, ", ".join(here.values()), holders)
            logged = True
        time.sleep(LOOK_SECONDS)


def _free(
    here: Mapping[str, str], count: int, files: contextlib.ExitStack
) -> tuple[tuple[str, ...], list[str]]:
    """(locked GPUs, busy GPUs), locked as long as `files`; ends early if `count` cannot be reached."""
    given, busy = [], []
    for gpu, name in here.items():
        if len(given) == count or len(here) - len(busy) < count:
            break
        lock = _gpu_lock(gpu)
        try:
            files.enter_context(FileLock(lock, timeout=0, mode=0o666, thread_local=False))
        except Timeout:
            busy.append(gpu)
            continue
        except OSError as error:
            raise StoreError(
                f"GPU {name} cannot be locked: {error}; {GPU_LOCKS} must be writable by all users "
                "(mode 1777); it is created if missing"
            ) from error
        with contextlib.suppress(OSError):  # full disk: the lock itself is enough
            _write_holder(lock)
        given.append(name)
    return tuple(given), busy


def _gpu_lock(gpu: str) -> Path:
    """Lock file of a GPU in a shared sticky folder, which gets its mode before its name."""
    if not GPU_LOCKS.exists():
        made = tempfile.mkdtemp(prefix=f".{GPU_LOCKS.name}-", dir=GPU_LOCKS.parent)
        os.chmod(made, 0o1777)
        try:
            os.rename(made, GPU_LOCKS)
        except OSError:  # another process was quicker
            os.rmdir(made)
    return GPU_LOCKS / re.sub(r"[^\w-]", "_", gpu)


@contextlib.contextmanager
def slots(name: str, count: int) -> Iterator[None]:
    """Acquire `count` slots of a Prefect concurrency limit, waiting for them. `ServiceError` if the limit
    does not exist or the server is unreachable.

    If the server disappears later, the work continues and slots are released early.
    """
    from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
    from prefect.concurrency.sync import concurrency

    options = {"lease_duration": LEASE_SECONDS, "strict": True, "raise_on_lease_renewal_failure": False}
    try:
        with concurrency(name, count, **options):
            yield
    except ConcurrencySlotAcquisitionError as error:
        raise ServiceError(
            f"could not acquire {count} slots of {name!r} from the Prefect server: {error}; create them "
            "with `ratchet deploy`"
        ) from error


@contextlib.contextmanager
def registry_lock(home: Path) -> Iterator[None]:
    """Lock the model registry, since aliases are read and then moved, and runs sharing a checkpoint would
    register it twice.

    A file lock separates processes of one home. Homes that share an MLflow server also need a Prefect server
    (`PREFECT_API_URL`) prepared by `ratchet deploy`; without one only the file lock is used, and logged.
    """
    with file_lock(home / "registry.lock", "the model registry"), contextlib.ExitStack() as stack:
        try:
            if "PREFECT_API_URL" not in os.environ:
                raise ServiceError("PREFECT_API_URL is not set")
            stack.enter_context(slots(REGISTRY, 1))
        except ServiceError as error:
            log.debug("the model registry is locked in %s only: %s", home, error)
        yield


def _write_holder(lock: Path) -> None:
    """Write the holder into the existing lock file (files of other users may be written, not created)."""
    since = time.strftime("%Y-%m-%d %H:%M:%S%z")
    with lock.open("r+") as file:
        file.truncate()
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": since}, file)


def _holder(lock: Path) -> str:
    try:
        holder = json.loads(lock.read_text())
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError):  # being written
        return "another process"
