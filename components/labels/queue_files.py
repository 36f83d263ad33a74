"""Files of a labelling queue's folder:

queue.json     settings (`ratchet.components.labels.settings`)
items.jsonl    the comparisons, in the order in which they are shown
labels.jsonl   labels and retractions; a label is on disk before `submit` returns
leases.jsonl   which annotator has which item on the screen, and until when
.lock          held by the one process that writes labels
.writing       held while a label is written, or the queue closed
closed         exists once no more labels are taken (`close_queue`)
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from filelock import FileLock

from ratchet.components.labels.labels import Label, read_labels
from ratchet.components.storage.store import write_atomic

LEASES, LOCK, WRITING, CLOSED = "leases.jsonl", ".lock", ".writing", "closed"


def close_queue(folder: Path) -> list[Label]:
    """Take no more labels, and return the standing ones. A label whose writing has begun still counts."""
    with FileLock(folder / WRITING, thread_local=False):
        write_atomic(folder / CLOSED, "")
        return read_labels(folder)


def leases_of(folder: Path) -> list[list[Any]]:
    """Item, annotator and end of every lease that was given, without a line that a full disk cut."""
    found, file = [], folder / LEASES
    for line in file.read_text().split("\n") if file.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found
