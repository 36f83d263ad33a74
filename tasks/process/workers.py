"""Warm worker processes: each runs stages one after another, inline and on one thread.

A worker has imported torch and transformers once, so a small stage costs its own work only. It exits with its
parent. It is replaced after `MOST_STAGES` stages, when it has used more than `MOST_BYTES` of memory, and when
it died.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ratchet.components.errors import RatchetError, redacted
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.child import set_up_process
from ratchet.tasks.process.launch import prepare, without_main

MOST_STAGES = 200
MOST_BYTES = 3_000_000_000


@dataclass(frozen=True)
class Finished:
    """The end of a job. `error`: empty if the stage's output is in the store."""

    job: Any
    error: str = ""


@dataclass
class _Worker:
    process: Any
    connection: Any
    job: Any = None
    stages: int = 0


@dataclass
class Workers:
    """`count` worker processes, started when they are needed. `log`: folder of their output."""

    count: int
    log: Path
    _workers: list[_Worker] = field(default_factory=list)

    def __enter__(self) -> Workers:
        prepare()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _stop(worker)
        self._workers.clear()

    @property
    def idle(self) -> int:
        return self.count - self.busy

    @property
    def busy(self) -> int:
        return sum(worker.job is not None for worker in self._workers)

    def start(self, job: Any, pipeline: Pipeline, stage: str) -> None:
        """Let an idle worker make `stage` of `pipeline`. `job` identifies it in `finished`."""
        worker = next((one for one in self._workers if one.job is None), None)
        if worker is None:
            assert self.idle, "no worker is idle"
            worker = _begin(len(self._workers), self.log)
            self._workers.append(worker)
        worker.job = job
        worker.connection.send((pipeline, stage))

    def finished(self) -> Iterator[Finished]:
        """Wait until at least one job has ended, and yield those that have."""
        busy = {one.connection: one for one in self._workers if one.job is not None}
        for connection in wait(list(busy)):
            worker = busy[connection]
            job, worker.job = worker.job, None
            try:
                error, used = worker.connection.recv()
            except (EOFError, ConnectionError):
                worker.process.join(10)
                error, used = f"its process died (exit code {worker.process.exitcode})", MOST_BYTES + 1
            worker.stages += 1
            if worker.stages >= MOST_STAGES or used > MOST_BYTES:
                self._workers.remove(worker)
                _stop(worker)
            yield Finished(job, error)


def _begin(number: int, log: Path) -> _Worker:
    log.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    given = (theirs, str(log / f"worker-{number}.log"), os.getpid())
    process = context.Process(target=_serve, args=given, daemon=False)
    with without_main():
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _stop(worker: _Worker) -> None:
    worker.connection.close()  # an idle worker ends by itself
    if worker.job is not None:
        worker.process.terminate()
    worker.process.join(5)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def _serve(connection: Any, log: str, parent: int) -> None:
    """Main loop of a worker: receives (pipeline, stage), makes the stage, sends (error, peak bytes)."""
    from ratchet.components.stages.job import peak_bytes

    set_up_process(parent, log)
    known: dict[str, Pipeline] = {}
    while True:
        try:
            pipeline, stage = connection.recv()
        except (EOFError, ConnectionError):
            return
        pipeline = known.setdefault(pipeline.run.name, pipeline)
        print(f"--- {pipeline.run.name} {stage}", flush=True)
        connection.send((_made(pipeline, stage), peak_bytes()))


def _made(pipeline: Pipeline, stage: str) -> str:
    """Make a stage; returns the error, empty if there was none."""
    try:
        pipeline.make(stage)
    except RatchetError as error:
        print(redacted(str(error)), flush=True)
        return redacted(str(error))
    except Exception as error:  # a failed stage must not end the worker
        sys.excepthook(type(error), error, error.__traceback__)
        return redacted(f"{type(error).__name__}: {error}")
    return ""
