"""Progress of a stage: done and total counts, written to a small file for the display.

A stage calls `expect`; code that samples or scores calls `advance`. A fit logs its own steps
(`components/storage/checkpoints.py`) and does not call `expect`. Outputs never depend on progress.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.components.training import ranks

EVERY = 0.5
"""Minimum seconds between writes."""
POLL = 1.0
"""Seconds between polls of a download folder."""


@dataclass
class _Count:
    file: Path
    unit: str = ""
    of: int | None = None
    done: int = 0
    written: float = 0.0


_count: _Count | None = None
_forward: Callable[[int], None] | None = None


@contextlib.contextmanager
def report_progress(file: Path) -> Iterator[None]:
    """While active, write progress to `file` on rank 0: {"step", "of", "unit", "time", "metrics": {}}."""
    global _count
    if ranks.first():
        file.unlink(missing_ok=True)  # left by an earlier attempt
    _count = _Count(file)
    try:
        yield
    finally:
        _count = None


def expect(unit: str, of: int | None = None) -> None:
    """Start counting units; `of` is the expected total, None if unknown. A total of 0 is ignored: the
    previous unit goes on counting.
    """
    if _count is not None and of != 0:
        _count.unit, _count.of, _count.done = unit, of, 0
        _write(_count)


def advance(number: int = 1) -> None:
    """Count finished units, at most the expected total: with vLLM, torch scores a few answers once more as a
    check (`SplitEngine`).
    """
    if _forward is not None:
        _forward(number)
    if _count is None or not _count.unit:
        return
    _count.done = _count.done + number if _count.of is None else min(_count.done + number, _count.of)
    if _count.done == _count.of or time.monotonic() - _count.written > EVERY:
        _write(_count)


@contextlib.contextmanager
def forward(to: Callable[[int], None]) -> Iterator[None]:
    """While active, pass the counts of this process to `to`, which sends them to the stage's process."""
    global _forward
    _forward = to
    try:
        yield
    finally:
        _forward = None


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Suspend counting, for work outside the expected total."""
    global _count
    kept, _count = _count, None
    try:
        yield
    finally:
        _count = kept


def counted(batches: Iterable[Any]) -> Iterator[Any]:
    """Iterate over batches, counting the rows of each after it was processed."""
    for batch in batches:
        yield batch
        advance(len(batch.group))


@contextlib.contextmanager
def watch_download(folder: Path) -> Iterator[None]:
    """Count the megabytes that appear below `folder`, for downloads that do not report progress."""
    expect("MB")
    before, over = _megabytes(folder), threading.Event()

    def look() -> None:
        most = 0
        while not over.wait(POLL):
            now = _megabytes(folder) - before
            if now > most:
                advance(now - most)
                most = now

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _megabytes(folder: Path) -> int:
    size = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # moved meanwhile
                size += os.lstat(os.path.join(where, name)).st_size
    return size // 10**6


def _write(count: _Count) -> None:
    count.written = time.monotonic()
    line = {"step": count.done, "of": count.of, "unit": count.unit, "time": time.time(), "metrics": {}}
    with contextlib.suppress(OSError):  # progress is optional; a full disk fails elsewhere
        if ranks.first():
            count.file.write_text(json.dumps(line) + "\n")
