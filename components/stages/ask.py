"""Stage `ask`: comparisons of a round's answers by people, who answer while the stage waits."""

from __future__ import annotations

import importlib
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError
from ratchet.components.labels.datasets import items_of, repeated
from ratchet.components.labels.labels import ITEMS, LABELS, Item, read_items, read_labels, to_line
from ratchet.components.labels.quality import random_annotators
from ratchet.components.labels.queue_files import CLOSED, close_queue
from ratchet.components.labels.scores import scored
from ratchet.components.labels.settings import (
    Settings,
    common_default,
    given,
    make_queue,
    needed,
    ordinary,
    read_settings,
)
from ratchet.components.stages import LABEL_VALIDATION, SIMULATED_PEOPLE, progress
from ratchet.components.stages.job import Job
from ratchet.components.storage.store import write_atomic
from ratchet.components.types import Group

QUEUE = "queue"
"""Folder of the queue below the stage's progress, which outlives a killed process."""
OPENED = "opened"
POLL = 0.5
"""Seconds between two looks at the labels."""


@dataclass(frozen=True)
class Waiting:
    """A queue that people answer. `wanted`: labels (see `count_labels`); `end`: deadline, in seconds since
    1970.
    """

    folder: Path
    items: list[Item]
    wanted: int
    end: float

    def is_over(self, now: float) -> bool:
        """Whether the queue has its labels, was closed, or has reached its deadline."""
        return count_labels(self.folder) >= self.wanted or now >= self.end or (self.folder / CLOSED).exists()


def ask(job: Job) -> dict[str, Any]:
    """Fill a labelling queue with pairs of answers, wait for the labels of people or the deadline, and write
    the judged answers with their scores (`ratchet.components.labels.scores`). Labels that fail the
    validation are left out. A stage that was killed continues with the labels that it has. `DataError` if
    there is nothing to compare, or no label.
    """
    options, groups = job.options["people"], _answers(job)
    queue = open_queue(job)
    simulated = importlib.import_module(SIMULATED_PEOPLE) if options["simulated"] else None
    with (
        simulated.answering(queue.folder, groups, options, job.options["seed"])
        if simulated
        else nullcontext()
    ):
        wait(queue.folder, queue.wanted, queue.end)
        given_labels = close_queue(queue.folder)
    validation = importlib.import_module(LABEL_VALIDATION)
    labels = validation.validated(queue.items, given_labels, job.work.product)
    judged = scored(groups, queue.items, labels)
    if not judged:
        raise DataError(
            f"round {job.options['round']}: nobody judged a pair of answers before the deadline "
            f"(deadline_hours: {options['deadline_hours']}); serve the page with `ratchet label RUN`, raise "
            "`deadline_hours` and run again"
        )
    write_groups(job.work.product / "groups.parquet", judged)
    shutil.copyfile(queue.folder / ITEMS, job.work.product / ITEMS)
    write_atomic(job.work.product / LABELS, "".join(map(to_line, labels)))
    careless = random_annotators(queue.items, labels)
    return {
        "counts": {
            "pairs asked": sum(map(ordinary, queue.items)),
            "labels asked": queue.wanted,
            "labels": len(labels),
            "labels quarantined": len(given_labels) - len(labels),
            "labels skipped": sum(label.verdict == "skip" for label in labels),
            "annotators": len({label.annotator for label in labels}),
            "annotators found random": len(careless),
            "prompts without a label": len(groups) - len(judged),
        },
        "warnings": [
            f"the choices of annotator {name} cannot be told from choices at random; an objective with "
            "`weight_column: label_weight` gives them little weight"
            for name in careless
        ],
    }


def open_queue(job: Job) -> Waiting:
    """Fill the stage's queue if it is not filled yet. `DataError` if there is nothing to compare."""
    options, folder = job.options["people"], job.work.progress / QUEUE
    overlap, seed = options["overlap"], job.options["seed"]
    pairs = max(1, int(options["labels"] / (1 + overlap) + 1e-9))
    round_number = job.options["round"]
    proposed = read_groups(job.path("pairs") / "groups.parquet") if "pairs" in job.inputs else _answers(job)
    comparisons = items_of(proposed, pairs, seed=seed, round=round_number, policy=job.inputs["policy"].digest)
    if not comparisons:
        raise DataError(f"round {round_number}: no prompt has two different answers for people to compare")
    common = options["common"]
    if common is None:
        common = common_default(len(comparisons), overlap)
    again = repeated(comparisons, options["repeats"], seed)
    make_queue(
        folder, [*comparisons, *again], Settings(overlap, common, seed=seed, guidelines=options["guidelines"])
    )
    items, hours = read_items(folder), options["deadline_hours"]
    end = float("inf") if hours is None else _opened(folder) + 3600 * hours
    return Waiting(folder, items, sum(needed(items, read_settings(folder)).values()), end)


def count_labels(folder: Path) -> int:
    """How many of the labels that a queue asks for it has: without skips, and without those of further
    annotators on the pairs that all judge.
    """
    return given(read_labels(folder), needed(read_items(folder), read_settings(folder)))


def wait(
    folder: Path,
    wanted: int,
    end: float,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait until a queue has the wanted number of labels (see `count_labels`), or is closed, or until `end`
    (seconds since 1970); returns the number.
    """
    progress.expect("labels", wanted)
    seen, size, found = 0, -1, 0
    while True:
        file = folder / LABELS
        now = file.stat().st_size if file.exists() else 0
        if now != size:
            size, found = now, count_labels(folder)
            progress.advance(max(0, found - seen))
            seen = max(seen, found)
        if found >= wanted or clock() >= end or (folder / CLOSED).exists():
            return found
        sleep(POLL)


def _answers(job: Job) -> Sequence[Group]:
    return read_groups(job.path("groups") / "groups.parquet")


def _opened(folder: Path) -> float:
    """When the queue was filled, in seconds since 1970."""
    file = folder / OPENED
    if not file.exists():
        write_atomic(file, str(time.time()))
    return float(file.read_text())
