"""Warm worker processes: each runs stages one after another, inline and on one thread.

A worker has imported torch and transformers once, so a small stage costs its own work only. It exits with its
parent. It is replaced when it has used more than `MOST_BYTES` of memory, and when it died.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.components.errors import RatchetError, redacted
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.child import set_up_process
from ratchet.tasks.process.launch import prepare, without_main

MOST_BYTES = 3_000_000_000


@dataclass(frozen=True)
class Finished:
    """The end of a job. `error`: empty if the stage's output is in the store."""

    job: Any
    error: str = ""


@dataclass
class Workers:
    """`count` worker processes, each a pool of its own, so that one that dies fails its own stage only.
    `log`: folder of their output.
    """

    count: int
    log: Path
    _free: list[ProcessPoolExecutor] = field(default_factory=list)
    _jobs: dict[Future[tuple[str, int]], tuple[Any, ProcessPoolExecutor]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __enter__(self) -> Workers:
        prepare()
        self.log.mkdir(parents=True, exist_ok=True)
        self._free = [self._worker() for _ in range(self.count)]
        return self

    def __exit__(self, *_: object) -> None:
        for child in multiprocessing.active_children():
            child.terminate()
        for pool in (*self._free, *(pool for _, pool in self._jobs.values())):
            pool.shutdown()

    def _worker(self) -> ProcessPoolExecutor:
        given = (os.getpid(), str(self.log / f"worker-{next(self._numbers)}.log"))
        context = multiprocessing.get_context("forkserver")
        return ProcessPoolExecutor(1, context, initializer=set_up_process, initargs=given)

    @property
    def idle(self) -> int:
        return self.count - self.busy

    @property
    def busy(self) -> int:
        return len(self._jobs)

    def start(self, job: Any, pipeline: Pipeline, stage: str) -> None:
        """Let an idle worker make `stage` of `pipeline`. `job` identifies it in `finished`."""
        pool = self._free.pop()
        with without_main():  # the first stage of a worker starts its process
            self._jobs[pool.submit(_make, pipeline, stage)] = job, pool

    def finished(self) -> Iterator[Finished]:
        """Wait until at least one job has ended, and yield those that have."""
        for future in wait(self._jobs, return_when=FIRST_COMPLETED).done:
            job, pool = self._jobs.pop(future)
            try:
                error, used = future.result()
            except BrokenProcessPool:
                error, used = "its process died", MOST_BYTES + 1
            if used > MOST_BYTES:
                pool.shutdown()
                pool = self._worker()
            self._free.append(pool)
            yield Finished(job, error)


def _make(pipeline: Pipeline, stage: str) -> tuple[str, int]:
    """Make a stage; returns the error, empty if there was none, and the process's peak memory in bytes."""
    from ratchet.components.stages.job import peak_bytes

    print(f"--- {pipeline.run.name} {stage}", flush=True)
    error = ""
    try:
        pipeline.make(stage)
    except RatchetError as failed:
        error = redacted(str(failed))
        print(error, flush=True)
    except Exception as failed:
        print(redacted(traceback.format_exc()), flush=True)
        error = redacted(f"{type(failed).__name__}: {failed}")
    return error, peak_bytes()
