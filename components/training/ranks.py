"""The processes that learn together: which one this is, and what they tell each other. A process alone is rank 0 of 1.

Who starts them is `ratchet.tasks.process.ranks`; each joins before its stage begins. Nothing here pickles to disk: objects travel between
processes of one run only.
"""

from __future__ import annotations

import atexit
import datetime
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = datetime.timedelta(days=7)
"""A rank may wait long while another works; when one dies the launcher ends the others, so no failure shows as a time-out."""


def join() -> None:
    """Join the ranks that the launcher announced in the environment (RANK, WORLD_SIZE, ...), or be alone without any."""
    import torch
    from torch import distributed

    if distributed.is_initialized():
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        distributed.init_process_group(backend, timeout=PATIENCE)
    else:
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    atexit.register(_leave)


def count() -> int:
    """How many processes learn together."""
    distributed = _joined()
    return distributed.get_world_size() if distributed else 1


def rank() -> int:
    """The number of this process, from 0."""
    distributed = _joined()
    return distributed.get_rank() if distributed else 0


def first() -> bool:
    """Whether this is the process that writes files."""
    return rank() == 0


def gather(value: T) -> list[T]:
    """Everyone's value, in the order of ranks. All ranks must call."""
    distributed = _joined()
    if distributed is None:
        return [value]
    values: list[Any] = [None] * count()
    distributed.all_gather_object(values, value)
    return values


def once(work: Callable[[], T]) -> T:
    """What `work` returns on the first rank, on every rank: for files, and for rewards that may be slow or moody."""
    distributed = _joined()
    if distributed is None:
        return work()
    box: list[Any] = [work() if first() else None]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def share(items: Sequence[T], cost: Callable[[T], float]) -> list[int]:
    """The indices of `items` that are this rank's, in order: the dearest item first, to the rank that has least to do."""
    if count() == 1:
        return list(range(len(items)))
    loads, mine = [0.0] * count(), []
    for index in sorted(range(len(items)), key=lambda i: (-cost(items[i]), i)):
        least = loads.index(min(loads))
        loads[least] += cost(items[index])
        if least == rank():
            mine.append(index)
    return sorted(mine)


def spread(items: Sequence[T], work: Callable[[list[T]], Sequence[Any]], cost: Callable[[T], float] = lambda _: 1.0) -> list[Any]:
    """`work` of all items, each rank doing its share; one result an item, in the order of items, on every rank."""
    if count() == 1:
        return list(work(list(items)))
    mine = share(items, cost)
    found: dict[int, Any] = {}
    for part in gather(list(zip(mine, work([items[i] for i in mine]) if mine else [], strict=True))):
        found.update(part)
    return [found[i] for i in range(len(items))]


def _leave() -> None:
    """An interpreter that ends while gloo's thread still holds the last work aborts (pytorch#190489), after all was done. A rank that
    failed does not wait for what it left unfinished with the others."""
    from torch import distributed

    if distributed.is_initialized() and not hasattr(sys, "last_value"):
        distributed.destroy_process_group()


def _joined() -> Any:
    """torch.distributed when other processes are there."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return None
    return distributed
