"""Engine processes of other machines: a stage that samples or scores accepts them, `ratchet join` starts
them.

The stage's process listens on a port and describes the job in `job.json` of its workspace, as a training
stage does (`tasks/process/ranks.py`). It begins with the engines of its own machine and hands slices to
others as they connect; the slice of an engine that is gone is computed by another. Connections are those of
`multiprocessing.connection`, which both sides authenticate with the job's key.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from ratchet.components.recipes.profile import engine_processes
from ratchet.components.stages.shards import STAGES
from ratchet.components.stages.slices import Arrivals
from ratchet.components.storage.store import write_atomic
from ratchet.tasks.machine.provenance import code_versions
from ratchet.tasks.process.engines import start_engine, stop_engines
from ratchet.tasks.process.ranks import JOB, Job

KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds and probes after which the connection to a machine that lost power counts as closed."""


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
