"""Stage `ask`: comparisons of a round's answers by people, who answer while the stage waits."""

from __future__ import annotations

import importlib
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError
from ratchet.components.labels.datasets import items_of
from ratchet.components.labels.labels import ITEMS, LABELS, read_items, read_labels
from ratchet.components.labels.queue import CLOSED, close_queue
from ratchet.components.labels.scores import scored
from ratchet.components.labels.settings import Settings, doubled, make_queue
from ratchet.components.stages import SIMULATED_PEOPLE, progress
from ratchet.components.stages.job import Job
from ratchet.components.storage.store import write_atomic

QUEUE = "queue"
"""Folder of the queue below the stage's progress, which outlives a killed process."""
OPENED = "opened"
POLL = 0.5
"""Seconds between two looks at the labels."""


def ask(job: Job) -> dict[str, Any]:
    """Fill a labelling queue with pairs of answers, wait for the labels of people or the deadline, and write
    the judged answers with their scores (`ratchet.components.labels.scores`). A stage that was killed
    continues with the labels that it has. `DataError` if there is nothing to compare, or no label.
    """
    options = job.options["people"]
    groups, folder = read_groups(job.path("groups") / "groups.parquet"), job.work.progress / QUEUE
    settings = Settings(options["overlap"], seed=job.options["seed"], guidelines=options["guidelines"])
    pairs = max(1, int(options["labels"] / (1 + options["overlap"]) + 1e-9))
    round_number = job.options["round"]
    asked = items_of(
        groups, pairs, seed=settings.seed, round=round_number, policy=job.inputs["policy"].digest
    )
    if not asked:
        raise DataError(f"round {round_number}: no prompt has two different answers for people to compare")
    make_queue(folder, asked, settings)
    items, hours = read_items(folder), options["deadline_hours"]
    wanted = len(items) + len(doubled(items, settings))
    end = float("inf") if hours is None else _opened(folder) + 3600 * hours
    simulated = importlib.import_module(SIMULATED_PEOPLE) if options["simulated"] else None
    with simulated.answering(folder, groups, options, settings.seed) if simulated else nullcontext():
        wait(folder, wanted, end)
        labels = close_queue(folder)
    judged = scored(groups, items, labels)
    if not judged:
        raise DataError(
            f"round {round_number}: nobody judged a pair of answers before the deadline (deadline_hours: "
            f"{hours}); serve the page with `ratchet label RUN`, raise `deadline_hours` and run again"
        )
    write_groups(job.work.product / "groups.parquet", judged)
    for name in (ITEMS, LABELS):
        shutil.copyfile(folder / name, job.work.product / name)
    return {
        "counts": {
            "pairs asked": len(items),
            "labels asked": wanted,
            "labels": len(labels),
            "labels skipped": sum(label.verdict == "skip" for label in labels),
            "annotators": len({label.annotator for label in labels}),
            "prompts without a label": len(groups) - len(judged),
        }
    }


def wait(
    folder: Path,
    wanted: int,
    end: float,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait until a queue has the wanted number of labels, without skips, or is closed, or until `end`
    (seconds since 1970); returns the number.
    """
    progress.expect("labels", wanted)
    seen, size, found = 0, -1, 0
    while True:
        file = folder / LABELS
        now = file.stat().st_size if file.exists() else 0
        if now != size:
            size, found = now, sum(label.verdict != "skip" for label in read_labels(folder))
            progress.advance(max(0, found - seen))
            seen = max(seen, found)
        if found >= wanted or clock() >= end or (folder / CLOSED).exists():
            return found
        sleep(POLL)


def _opened(folder: Path) -> float:
    """When the queue was filled, in seconds since 1970."""
    file = folder / OPENED
    if not file.exists():
        write_atomic(file, str(time.time()))
    return float(file.read_text())
