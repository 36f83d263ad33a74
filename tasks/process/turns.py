"""Whose turn it is: a run is made by one process at a time, and no GPU is given to two.

A run, the registry, the DVC workspace and each GPU are held by a file lock (filelock, `flock`): the kernel frees it when its holder dies,
SIGKILL included, so nothing is ever left to clear by hand. (Stages that two runs share are held by the store itself.)
GPU slots are a global concurrency limit of the Prefect server, which sees all machines and counts; which GPU it is, the
machine decides. So is the registry's turn among workers that share no disk.
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

log = logging.getLogger("ratchet.turns")

IfRunning = Literal["wait", "refuse"]
REGISTRY = "ratchet-registry"  # the limit that `ratchet deploy` makes for the model registry
GPU_LOCKS = Path("/tmp/ratchet-gpus")  # of all users of the machine; TMPDIR may be a user's own
LOOK_SECONDS = 1.0  # between two looks for free GPUs
LEASE_SECONDS = 90.0  # the slots of a holder that was killed come back within this and the server's next look (15 s)


@contextlib.contextmanager
def held(lock: Path, what: str, if_running: IfRunning = "wait") -> Iterator[None]:
    """Hold the file `lock` for this process alone. Another holder is waited for, or refused with `BusyError`.

    The file says who holds it, for people; only the kernel's lock counts. A stage's process does not inherit it.
    """
    with disk_errors(f"taking {lock}"):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = FileLock(lock, thread_local=False)
        try:
            file.acquire(timeout=0)
        except Timeout:
            holder = _holder(lock)
            if if_running == "refuse":
                raise BusyError(f"{what} is held by {holder}; wait for it to end, or let this one wait (if_running: wait)") from None
            log.warning("%s is held by %s; waiting for it", what, holder)
            file.acquire(poll_interval=0.2)
    try:
        _sign(lock)
        yield
    finally:
        file.release()


@contextlib.contextmanager
def gpu_slots(count: int) -> Iterator[tuple[str, ...]]:
    """Hold `count` slots of the Prefect server's limit `gpu` and as many GPUs of this machine, waiting for them; 0 asks nobody.

    Gives what CUDA_VISIBLE_DEVICES shall name to whoever works meanwhile: nothing where the machine has no GPU, and slots are counted
    all the same. Raises `RecipeError` where it has fewer than asked, and what `slots` raises.
    """
    if not count:
        yield ()
        return
    here = visible_gpus()
    if here and count > len(here):
        raise RecipeError(f"`gpus: {count}`, and this machine has {len(here)} ({', '.join(here.values())}; CUDA_VISIBLE_DEVICES, where it is set, "
                          f"lists all there are); ask for at most {len(here)}")
    with slots("gpu", count), gpus_of(here, count if here else 0) as given:
        yield given


@contextlib.contextmanager
def gpus_of(here: Mapping[str, str], count: int) -> Iterator[tuple[str, ...]]:
    """Hold `count` of the GPUs `here` (`visible_gpus`) for this process alone, and give what CUDA_VISIBLE_DEVICES calls them.

    All at once or none: who waits keeps nothing that another waits for. Of two who reach for the same at once one gets them, as both
    go through the GPUs in one order and the first who cannot get enough lets go.
    """
    told = False
    while True:
        with contextlib.ExitStack() as files:
            given, busy = _free(here, count, files)
            if len(given) == count:
                yield given
                return
        if not told:
            log.warning("waiting for %d of the GPUs %s: %s", count, ", ".join(here.values()),
                        ", ".join(f"{here[gpu]} is held by {_holder(_gpu_lock(gpu))}" for gpu in busy))
            told = True
        time.sleep(LOOK_SECONDS)


def _free(here: Mapping[str, str], count: int, files: contextlib.ExitStack) -> tuple[tuple[str, ...], list[str]]:
    """What was free, held as long as `files`, and what was not; no further than there is hope for `count`."""
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
            raise StoreError(f"GPU {name} cannot be held: {error}; every user of this machine must be able to write in {GPU_LOCKS} "
                             "(mode 1777), which is made when it is not there") from error
        with contextlib.suppress(OSError):  # a full disk: the lock is what counts
            _sign(lock)
        given.append(name)
    return tuple(given), busy


def _gpu_lock(gpu: str) -> Path:
    """The lock file of a GPU, in a folder where every user may make files and remove his own; the folder gets its rights under another
    name, so that nobody meets it without."""
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


def _sign(lock: Path) -> None:
    """Write down who holds it, into the file that is there: another user's may be written, not created."""
    said = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S%z")}
    file = os.open(lock, os.O_WRONLY)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(said).encode(), 0)
    finally:
        os.close(file)


def _holder(lock: Path) -> str:
    try:
        said = json.loads(lock.read_text())
        return f"process {said['pid']} on {said['host']} since {said['since']}"
    except (OSError, ValueError, KeyError):  # it is just being written
        return "another process"
