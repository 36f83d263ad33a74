"""How far a stage is, for whoever waits for it: what there is to do, and what is done of it, in a file that is written over.

A stage says `expect`, and what samples, scores or sifts says `advance`. A fit logs its own steps (`components/storage/checkpoints.py`) and expects
nothing here, so the few answers that it is probed with count for nothing. No product depends on any of this.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.components.training import ranks

EVERY = 0.5
"""Seconds between two writes."""
LOOK = 1.0
"""Seconds between two looks at what others bring."""


@dataclass
class _Count:
    file: Path
    unit: str = ""
    of: int | None = None
    done: int = 0
    written: float = 0.0


_count: _Count | None = None


@contextlib.contextmanager
def told_in(file: Path) -> Iterator[None]:
    """Inside, what is done of what is expected stands in `file`: {"step", "of", "unit", "time", "metrics": {}}, on the first rank."""
    global _count
    if ranks.first():
        file.unlink(missing_ok=True)  # an attempt's before this one
    _count = _Count(file)
    try:
        yield
    finally:
        _count = None


def expect(unit: str, of: int | None = None) -> None:
    """From here on, units are counted: `of` of them are to come, None where nobody knows. Where none are, nothing is told."""
    if _count is not None and of != 0:
        _count.unit, _count.of, _count.done = unit, of, 0
        _write(_count)


def advance(number: int = 1) -> None:
    """So many more are done. Never more than were expected: a sampler that is checked scores a few answers besides."""
    if _count is None or not _count.unit:
        return
    _count.done = _count.done + number if _count.of is None else min(_count.done + number, _count.of)
    if _count.done == _count.of or time.monotonic() - _count.written > EVERY:
        _write(_count)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Inside, nothing is counted: for work that was not expected, such as a selector that verifies again."""
    global _count
    kept, _count = _count, None
    try:
        yield
    finally:
        _count = kept


def counted(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, with the rows of each counted once it was worked on."""
    for batch in batches:
        yield batch
        advance(len(batch.group))


@contextlib.contextmanager
def arriving(folder: Path) -> Iterator[None]:
    """Inside, megabytes are counted that come to lie below `folder`: for a download by somebody who does not tell."""
    expect("MB")
    before, over = _megabytes(folder), threading.Event()

    def look() -> None:
        most = 0
        while not over.wait(LOOK):
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
            with contextlib.suppress(OSError):  # it was moved meanwhile
                size += os.lstat(os.path.join(where, name)).st_size
    return size // 10**6


def _write(count: _Count) -> None:
    count.written = time.monotonic()
    line = {"step": count.done, "of": count.of, "unit": count.unit, "time": time.time(), "metrics": {}}
    with contextlib.suppress(OSError):  # the work goes on; a full disk is told of by what is needed
        if ranks.first():
            count.file.write_text(json.dumps(line) + "\n")
