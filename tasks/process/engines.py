"""Engine processes of a stage: one inference engine per device, besides its own process.

Those of this machine are forked from the launcher's fork server and connected to the stage's process by pipes
(`components/stages/shards.py`). They end with the stage and with the flow process.

A stage on several machines also listens on a port and describes the job in `job.json` of its workspace, as a
training stage does (`tasks/process/ranks.py`); `ratchet join` starts engines of other machines. The stage
begins with its own and hands slices to others as they connect; the slice of an engine that is gone is
computed by another. Both sides of a connection authenticate with the job's key.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.profile import engine_processes, gpus_per_engine
from ratchet.components.stages.shards import STAGES, serve
from ratchet.components.stages.slices import Arrivals
from ratchet.components.storage.store import write_atomic
from ratchet.tasks.machine.provenance import code_versions
from ratchet.tasks.process.child import send_error, set_up_process
from ratchet.tasks.process.ranks import JOB, Job

KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds and probes after which the connection to a machine that lost power counts as closed."""


def engines_of(request: Mapping[str, Any]) -> int:
    """Number of engine processes of a stage on this machine; 0: it computes in its own process."""
    profile = request["options"].get("profile")
    if not profile or request["does"] not in STAGES:
        return 0
    count = engine_processes(profile)
    return count if count > 1 or int(profile.get("machines", 1)) > 1 else 0


def start_engines(
    request: Mapping[str, Any], count: int, log: Path, devices: Sequence[str]
) -> tuple[list[BaseProcess], list[Connection]]:
    """The processes, and the stage's ends of their connections."""
    workers, connections = [], []
    for number in range(count):
        ours, theirs = multiprocessing.Pipe()
        workers.append(start_engine(theirs, request, (number, count, tuple(devices)), str(log)))
        connections.append(ours)
    return workers, connections


def start_engine(
    connection: Connection, request: Mapping[str, Any], place: tuple[int, int, tuple[str, ...]], log: str
) -> BaseProcess:
    """Start an engine process and hand it the connection. `place`: its number, their count, GPUs of all."""
    given = (connection, request["does"], request["options"]["profile"], place, log, os.getpid())
    process = multiprocessing.get_context("forkserver").Process(target=serve_slices, args=given)
    process.start()
    connection.close()
    return process


def stop_engines(workers: Sequence[BaseProcess]) -> None:
    """End the processes: an idle one has ended with the stage's process."""
    for process in workers:
        process.join(1)
        if process.is_alive():
            process.kill()
            process.join()


def serve_slices(
    connection: Connection,
    does: str,
    profile: Mapping[str, Any],
    place: tuple[int, int, tuple[str, ...]],
    log: str,
    parent: int,
) -> None:
    """Main function of an engine process. An error is sent to the stage, which raises it."""
    number, count, devices = place
    set_up_process(parent, log)
    print(f"engine {number + 1} of {count}: process {os.getpid()}", flush=True)
    where = f"stage {does!r}: engine {number + 1} of {count} on {socket.gethostname()}"
    try:
        _choose_gpus(profile, number, count, devices)
        from ratchet.components.stages.job import computing, peak_bytes, processor_seconds

        own = {**profile, "threads": threads_per_engine(profile["threads"], count)}
        with computing(own):
            serve(connection, own, lambda: (processor_seconds(), peak_bytes() - shared_bytes()))
    except BaseException as error:
        advice = "use fewer `engines` or a smaller profile (max_num_seqs), and run again: shards are kept"
        send_error(connection, where, error, advice, log)


def shared_bytes() -> int:
    """Resident memory of this process that is counted with other processes: of a page that k processes share
    (libraries, mapped weights, what was inherited by fork), the share (k - 1) / k. 0 where the kernel does
    not say; Linux does.
    """
    import psutil

    memory = psutil.Process().memory_full_info()
    return memory.rss - getattr(memory, "pss", memory.rss)


def threads_per_engine(threads: int | None, count: int) -> int:
    """CPU threads of each of `count` engines: their share of the stage's threads, at least one."""
    return max(1, (threads or len(os.sched_getaffinity(0))) // count)


def _choose_gpus(profile: Mapping[str, Any], number: int, count: int, devices: tuple[str, ...]) -> None:
    """Restrict this process to its GPUs, before CUDA is initialised. `RecipeError` if there are too few."""
    import torch

    if not (found := torch.cuda.device_count()):  # read from the driver, without initialising CUDA
        return
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = list(devices) or (named.split(",") if named else [str(i) for i in range(found)])
    each = gpus_per_engine(profile)
    if len(visible) < count * each:
        seen = f"{len(visible)} GPU{'s are' if len(visible) != 1 else ' is'} visible"
        raise RecipeError(
            f"the profile needs {count} engines of {each} GPU{'s' * (each > 1)}, but {seen}; set `engines` "
            f"to {max(1, len(visible) // each)}"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[number * each : (number + 1) * each])


@contextlib.contextmanager
def accept_engines(request: Mapping[str, Any], log: str) -> Iterator[Arrivals | None]:
    """Accept engine processes of other machines while a stage that samples or scores runs; None if it takes
    none.
    """
    profile = request["options"].get("profile") or {}
    machines, key = int(profile.get("machines", 1)), secrets.token_hex(32)
    if machines == 1 or request["does"] not in STAGES:
        yield None
        return
    file = Path(request["work"]) / JOB
    engines = engine_processes(profile) * machines
    arrivals = Arrivals()
    with Listener(("", 0), backlog=engines, authkey=key.encode()) as listener:
        host = os.environ.get("RATCHET_ADDRESS", socket.gethostname())
        job = Job(
            request, log, engines, machines, f"{host}:{listener.address[1]}", key=key, code=code_versions()
        )
        threading.Thread(target=_accept, args=(listener, arrivals), name="engines", daemon=True).start()
        write_atomic(file, json.dumps(asdict(job)), private=True)
        try:
            yield arrivals
        finally:
            file.unlink(missing_ok=True)


def _accept(listener: Listener, arrivals: Arrivals) -> None:
    """Hand over connections until the listener is closed. One that closes early was a look at the port."""
    while True:
        try:
            engine = listener.accept()
        except (EOFError, ConnectionError, multiprocessing.AuthenticationError):
            continue
        except OSError:
            return
        _keep_alive(engine)
        print(f"an engine on {listener.last_accepted[0]} joined", flush=True)  # pyright: ignore[reportOptionalSubscript]
        arrivals.add(engine)


def serve_job(job: Job, log: str) -> int:
    """Start this machine's engine processes and wait until the stage ends, or they do; returns how many were
    killed. `OSError` and `AuthenticationError` if the stage cannot be reached.
    """
    host, port = job.endpoint.rsplit(":", 1)
    count, workers = job.ranks_per_machine, []
    try:
        for number in range(count):
            connection = Client((host, int(port)), authkey=job.key.encode())
            _keep_alive(connection)
            workers.append(start_engine(connection, job.request, (number, count, ()), log))
        for process in workers:
            process.join()
        return sum(process.exitcode != 0 for process in workers)
    finally:
        stop_engines(workers)


def _keep_alive(connection: Connection) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):  # Linux
                other.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
