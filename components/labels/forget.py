"""Deletion of an annotator's labels."""

from __future__ import annotations

import json
from pathlib import Path

from ratchet.components.labels.labels import LABELS, read_history, to_line
from ratchet.components.labels.queue import Queue
from ratchet.components.labels.queue_files import LEASES, leases_of
from ratchet.components.storage.store import write_atomic


def forget(folder: Path, annotator: str) -> int:
    """Delete every line of an annotator from the files of a queue; returns the number of standing labels
    among them. `BusyError` while a process has the queue open.
    """
    with Queue(folder) as queue:
        labels = sum(label.annotator == annotator for label in queue.labels())
        file = folder / LABELS
        kept = [one for one in read_history(file) if one.annotator != annotator] if file.exists() else []
        write_atomic(file, "".join(map(to_line, kept)))
        left = [row for row in leases_of(folder) if row[1] != annotator]
        write_atomic(folder / LEASES, "".join(json.dumps(row) + "\n" for row in left))
    return labels
