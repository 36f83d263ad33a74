"""The labelling queue: which comparison an annotator judges next.

Its state is derived from the files of its folder (`queue_files.py`), so a process that was killed continues
where it was.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from types import TracebackType

from filelock import FileLock, Timeout

from ratchet.components.errors import BusyError, DataError, RatchetError
from ratchet.components.labels.labels import (
    ITEMS,
    LABELS,
    Item,
    Label,
    Retraction,
    append_durably,
    item_of,
    read_history,
    read_items,
    repair,
    standing,
)
from ratchet.components.labels.progress import RECENT, Progress
from ratchet.components.labels.queue_files import CLOSED, LEASES, LOCK, WRITING, leases_of
from ratchet.components.labels.settings import common, given, needed, ordinary, read_settings
from ratchet.components.storage.store import write_atomic

REPEAT_AFTER = 5
"""Labels of an annotator between an item and its repetition."""


class Taken(RatchetError):
    """The item went to another annotator after this annotator's lease ended, or the queue is closed."""


class Queue:
    """A queue folder opened for labelling; a context manager. Methods may be called from several threads.
    `clock` returns seconds since 1970. `BusyError` if another process has it open.
    """

    def __init__(self, folder: str | Path, clock: Callable[[], float] = time.time) -> None:
        self.folder, self._clock = Path(folder), clock
        self.settings = read_settings(self.folder)
        self._mutex = threading.RLock()
        self._file_lock = FileLock(self.folder / LOCK, thread_local=False)
        if not (self.folder / ITEMS).is_file():
            raise DataError(f"{self.folder} is not a labelling queue: it has no {ITEMS}")
        try:
            self._file_lock.acquire(timeout=0)
        except Timeout:
            raise BusyError(
                f"the labelling queue {self.folder} is open in another process; stop it first"
            ) from None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        for name in (ITEMS, LABELS, LEASES):
            repair(self.folder / name)
        self._size = -1
        self._set_items(read_items(self.folder))
        self._labels: dict[tuple[str, str], Label] = {}
        self._judges: dict[str, set[str]] = {}  # item -> annotators who judged it, without skips
        file = self.folder / LABELS
        for label in standing(read_history(file)) if file.exists() else ():
            self._keep(label)
        self._leases: dict[str, dict[str, float]] = {}  # item -> annotator -> end
        now, rows = self._clock(), {(item, holder): until for item, holder, until in leases_of(self.folder)}
        rows = {key: until for key, until in rows.items() if until > now and key not in self._labels}
        for (item, holder), until in rows.items():
            self._leases.setdefault(item, {})[holder] = until
        write_atomic(self.folder / LEASES, "".join(json.dumps([*k, u]) + "\n" for k, u in rows.items()))

    def _set_items(self, items: list[Item]) -> None:
        self._items: dict[str, Item] = {item.id: item for item in items}
        self._needed, self._common = needed(items, self.settings), common(items, self.settings)

    def _keep(self, label: Label) -> None:
        self._labels[label.item, label.annotator] = label
        if label.verdict != "skip":
            self._judges.setdefault(label.item, set()).add(label.annotator)

    def close(self) -> None:
        """Let other processes open the queue."""
        self._file_lock.release()

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    # --- annotators ---

    def next(self, annotator: str) -> Item | None:
        """The item that the annotator sees: the one that they have leased, else a new one, which is leased to
        them. None if no item is open to them now.
        """
        with self._mutex:
            if self.closed:
                return None
            self._read_items()
            now = self._clock()
            for item, holders in self._leases.items():
                if holders.get(annotator, 0) > now and item in self._items:
                    return self._items[item]
            common_first = sorted(self._items.values(), key=lambda one: one.id not in self._common)
            found = self._extra(annotator) or next(
                (one for one in common_first if ordinary(one) and self._open_to(one, annotator)), None
            )
            if found is not None:
                self._lease(found.id, annotator)
            return found

    def order(self, item: str, annotator: str) -> list[int]:
        """Indices of the answers in the order in which this annotator sees them: random, always the same."""
        order = list(range(len(self._item(item).answers)))
        random.Random(f"order/{self.settings.seed}/{item}/{annotator}").shuffle(order)
        return order

    def renew(self, item: str, annotator: str) -> None:
        """Keep the item reserved for the annotator who still sees it. `Taken` if another has it by now."""
        with self._mutex:
            if not self._open_to(self._item(item), annotator):
                raise Taken(f"item {item} went to another annotator")
            self._lease(item, annotator)

    def submit(self, label: Label) -> Label:
        """Store a label; it is on disk when this returns. A second label of the annotator on the item changes
        nothing and returns the first, so that a repeated request is harmless; a label is changed by `undo`.

        Raises `DataError` for an unknown item or an order that is not of its answers, and `Taken` if the item
        went to another annotator after the lease had ended.
        """
        with self._mutex:
            item = item_of(label, self._items)
            if (known := self._labels.get((item.id, label.annotator))) is not None:
                return known
            if not self._open_to(item, label.annotator):
                raise Taken(f"item {item.id} went to another annotator, who judges it now or has judged it")
            stored = label if label.time else replace(label, time=self._time())
            self._append(stored)
            self._keep(stored)
            self._leases.get(item.id, {}).pop(label.annotator, None)
            return stored

    def undo(self, annotator: str, item: str) -> bool:
        """Retract the annotator's label of an item and lease the item to them again; False if there is no
        such label, so that a repeated request is harmless.
        """
        with self._mutex:
            if (item, annotator) not in self._labels:
                return False
            self._append(Retraction(item, annotator, self._time()))
            del self._labels[item, annotator]
            self._judges.get(item, set()).discard(annotator)
            for other in [name for name, holders in self._leases.items() if annotator in holders]:
                self._lease(other, annotator, ends=True)
            self._lease(item, annotator)
            return True

    def last(self, annotator: str) -> str | None:
        """Id of the item that the annotator judged last and has not undone; None without any."""
        with self._mutex:
            mine = [item for item, holder in self._labels if holder == annotator]
            return mine[-1] if mine else None

    # --- state ---

    @property
    def closed(self) -> bool:
        """Whether no more labels are taken: the run that asked has gone on."""
        return (self.folder / CLOSED).exists() or not (self.folder / ITEMS).exists()

    def _append(self, record: Label | Retraction) -> None:
        """Write a line. `Taken` if the queue is closed: nothing is written after `close_queue` returned."""
        if self.closed:
            raise Taken("the queue is closed: the run has gone on with the labels it had")
        with FileLock(self.folder / WRITING, thread_local=False):
            if self.closed:
                raise Taken("the queue is closed: the run has gone on with the labels it had")
            append_durably(self.folder / LABELS, [record])

    def progress(self, annotator: str = "") -> Progress:
        """Counts of the queue and of one annotator."""
        with self._mutex:
            self._read_items()
            mine = [label for label in self._labels.values() if label.annotator == annotator]
            judged, wanted = given(self._labels.values(), self._needed), sum(self._needed.values())
            times = [label.seconds for label in mine[-RECENT:]]
            return Progress(len(mine), judged, wanted, median(times) if times else None)

    def labels(self) -> list[Label]:
        """The standing labels, in the order in which they were given."""
        with self._mutex:
            return list(self._labels.values())

    def _read_items(self) -> None:
        """Read the items again if another process added some."""
        if self.closed:
            return
        size = (self.folder / ITEMS).stat().st_size
        if size != self._size:
            self._set_items(read_items(self.folder))
            self._size = size

    def _item(self, name: str) -> Item:
        if name not in self._items:
            raise DataError(f"the queue has no item {name!r}")
        return self._items[name]

    def _open_to(self, item: Item, annotator: str) -> bool:
        """Whether the annotator may judge an item now. No annotator judges an item twice. Otherwise it
        depends on the kind of item:

        - planted: open to every annotator;
        - a repetition: open to the annotators who judged the original;
        - common: open to every annotator whose ordinary labels are fewer than the common items; after that
          like any ordinary item;
        - ordinary: open while the other annotators who judged it (a skip does not count) or have a lease of
          it are fewer than the labels that it needs.
        """
        if (item.id, annotator) in self._labels:
            return False
        if item.planted is not None:
            return True
        if item.repeat_of is not None:
            return (item.repeat_of, annotator) in self._labels
        if item.id in self._common and self._ordinary_judged(annotator) < len(self._common):
            return True
        now = self._clock()
        leased = {holder for holder, until in self._leases.get(item.id, {}).items() if until > now}
        others = (self._judges.get(item.id, set()) | leased) - {annotator}
        return len(others) < self._needed[item.id]

    def _ordinary_judged(self, annotator: str) -> int:
        """Ordinary items that the annotator judged or skipped."""
        mine = (self._items.get(item) for item, holder in self._labels if holder == annotator)
        return sum(item is not None and ordinary(item) for item in mine)

    def _extra(self, annotator: str) -> Item | None:
        """A planted item or a repetition, if one is due: the first after a number of ordinary items that
        depends on the annotator, then one after every `extra_every`; of the two kinds the one that the
        annotator has judged less often.
        """
        mine = [item for item, holder in self._labels if holder == annotator and item in self._items]
        judged = self._ordinary_judged(annotator)
        every = self.settings.extra_every
        offset = random.Random(f"extra/{self.settings.seed}/{annotator}").randrange(every)
        if judged < (len(mine) - judged) * every + offset + 1:
            return None
        recent = set(mine[-REPEAT_AFTER:])
        extras = [
            item
            for item in self._items.values()
            if not ordinary(item) and item.repeat_of not in recent and self._open_to(item, annotator)
        ]
        had = sum(self._items[item].planted is not None for item in mine)
        planted_first = had <= len(mine) - judged - had
        return min(extras, key=lambda one: (one.planted is not None) != planted_first, default=None)

    def _lease(self, item: str, annotator: str, ends: bool = False) -> None:
        until = 0.0 if ends else self._clock() + 60 * self.settings.lease_minutes
        self._leases.setdefault(item, {})[annotator] = until
        with (self.folder / LEASES).open("a") as file:
            file.write(json.dumps([item, annotator, until]) + "\n")

    def _time(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
