"""Helpers over `torch.distributed`: rank, world size, gather, broadcast, sharding of work. A single process
is rank 0 of 1.

The launcher is `ratchet.tasks.process.ranks`; each process calls `join` before its stage starts. Objects are
pickled between processes of one run only, never to disk.
"""

from __future__ import annotations

import atexit
import datetime
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

TIMEOUT = datetime.timedelta(days=7)
"""Collective timeout. Long, because ranks may wait while rank 0 works; the launcher ends all ranks when one
dies.
"""


def join() -> None:
    """Initialise the process group from the launcher's environment (RANK, WORLD_SIZE, ...), or a group of one
    without it.
    """
    import torch
    from torch import distributed

    if distributed.is_initialized():
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        distributed.init_process_group(backend, timeout=TIMEOUT)
    else:
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    atexit.register(_leave)


def count() -> int:
    """World size."""
    distributed = _joined()
    return distributed.get_world_size() if distributed else 1


def rank() -> int:
    """Rank of this process, from 0."""
    distributed = _joined()
    return distributed.get_rank() if distributed else 0


def first() -> bool:
    """Whether this is rank 0, which writes files."""
    return rank() == 0


def first_of_machine() -> bool:
    """Whether this is the first rank of its machine, which writes files that no other machine sees."""
    return _joined() is None or os.environ.get("LOCAL_RANK", "0") == "0"


def gather(value: T) -> list[T]:
    """All-gather of Python objects, in rank order. Collective."""
    distributed = _joined()
    if distributed is None:
        return [value]
    values: list[Any] = [None] * count()
    distributed.all_gather_object(values, value)
    return values


def once(work: Callable[[], T]) -> T:
    """Run `work` on rank 0 and broadcast its result: for files and for slow or nondeterministic rewards.
    Collective.
    """
    distributed = _joined()
    if distributed is None:
        return work()
    box: list[Any] = [work() if first() else None]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def share(items: Sequence[T], cost: Callable[[T], float]) -> list[int]:
    """Indices of `items` assigned to this rank, in order: longest-processing-time greedy balancing (largest
    cost first, to the least loaded rank).
    """
    if count() == 1:
        return list(range(len(items)))
    loads, mine = [0.0] * count(), []
    for index in sorted(range(len(items)), key=lambda i: (-cost(items[i]), i)):
        least = loads.index(min(loads))
        loads[least] += cost(items[index])
        if least == rank():
            mine.append(index)
    return sorted(mine)


def spread(
    items: Sequence[T], work: Callable[[list[T]], Sequence[Any]], cost: Callable[[T], float] = lambda _: 1.0
) -> list[Any]:
    """`work` applied to all items, sharded over ranks by `cost`; returns one result per item, in item order,
    on every rank. Collective.
    """
    if count() == 1:
        return list(work(list(items)))
    mine = share(items, cost)
    results: dict[int, Any] = {}
    for part in gather(list(zip(mine, work([items[i] for i in mine]) if mine else [], strict=True))):
        results.update(part)
    return [results[i] for i in range(len(items))]


def _leave() -> None:
    """Destroy the process group at exit; without it, gloo's background thread can abort the interpreter
    (pytorch#190489). Skipped after an uncaught exception, where pending collectives would block.
    """
    from torch import distributed

    if distributed.is_initialized() and not hasattr(sys, "last_value"):
        distributed.destroy_process_group()


def _joined() -> Any:
    """`torch.distributed` if the world size is above 1, else None."""
    distributed = sys.modules.get("torch.distributed")
    if (
        distributed is None
        or not distributed.is_available()
        or not distributed.is_initialized()
        or distributed.get_world_size() == 1
    ):
        return None
    return distributed
