"""Slices of an engine's calls: computed in this process or by engine processes, here and on other machines,
and kept on disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from ratchet.components.errors import StageError
from ratchet.components.stages import progress
from ratchet.components.storage.store import write_atomic
from ratchet.components.types import Sample

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine

ATTEMPTS = 2
"""Engine processes that may die with the same slice before the stage fails."""


@dataclass(frozen=True)
class Slice:
    """Part of a call. `key`: digest of model and items, the file name of the result. `answers`: rows, for
    progress.
    """

    call: str  # "generate" | "score"
    items: Sequence[Any]  # requests, or encoded groups
    outputs: frozenset[str]
    answers: int
    key: str


@final
class Arrivals:
    """Engine processes that connect while a stage runs, added by the thread that accepts them. `signal` is
    readable when there are some.
    """

    def __init__(self) -> None:
        self._new = deque[Connection]()
        self.signal, self._write = socket.socketpair()

    def add(self, engine: Connection) -> None:
        self._new.append(engine)
        self._write.send(b"1")

    def take(self) -> Connection:
        """The next one; waits for it."""
        self.signal.recv(1)
        return self._new.popleft()


@dataclass
class Shards:
    """Results of slices in `folder`, and the connections to the engine processes; none: this process
    computes them. `arrivals`: engine processes of other machines. `models`: number of models so far.
    `usage`: CPU seconds and peak bytes by engine process (host, process id).
    """

    folder: Path
    engines: list[Connection] = field(default_factory=list)
    arrivals: Arrivals | None = None
    models: int = 0
    usage: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)

    def compute(
        self, slices: Sequence[Slice], model: Mapping[str, Any], local: Callable[[Slice], list[Any]]
    ) -> list[list[Any]]:
        """The result of every slice, in order. `model`: what an engine process loads; `local`: computes a
        slice in this process. `StageError` if an engine process died and no other could compute its slice.
        """
        results: dict[int, list[Any]] = {}
        waiting = deque[int]()
        for number, one in enumerate(slices):
            found = self._read(one)
            if found is None:
                waiting.append(number)
            else:
                results[number] = found
                progress.advance(one.answers)
        remote = bool(self.engines)
        while waiting and not remote:
            number = waiting.popleft()
            results[number] = self._keep(slices[number], local(slices[number]))
        if waiting:
            self._spread(slices, waiting, results, model)
        return [results[number] for number in range(len(slices))]

    def _spread(
        self,
        slices: Sequence[Slice],
        waiting: deque[int],
        results: dict[int, list[Any]],
        model: Mapping[str, Any],
    ) -> None:
        idle, busy, lost = deque(self.engines), dict[Connection, int](), Counter[int]()
        arrivals = [self.arrivals.signal] if self.arrivals else []
        while waiting or busy:
            while wait(arrivals, timeout=0):
                idle.append(self._arrived())
            while waiting and idle and max(lost.values(), default=0) < ATTEMPTS:
                engine, number = idle.popleft(), waiting.popleft()
                busy[engine] = number
                with contextlib.suppress(OSError):  # it died while idle: noticed below
                    engine.send((model, slices[number]))
            if not busy:
                raise StageError(
                    f"{len(lost)} of the stage's shards could not be computed, because their engine "
                    "processes died; the machine probably ran out of memory. Finished shards are kept: run "
                    "again to continue, with fewer `engines` in the profile if it happens again",
                    died=True,
                )
            for engine in wait([*busy, *arrivals]):
                if not isinstance(engine, Connection):
                    continue  # arrivals: taken above
                try:
                    kind, value = engine.recv()
                except (EOFError, OSError):
                    number = busy.pop(engine)
                    print(f"an engine process died; shard {slices[number].key} is computed again", flush=True)
                    self.engines.remove(engine)
                    lost[number] += 1
                    waiting.appendleft(number)
                    continue
                if kind == "progress":
                    progress.advance(value)
                elif kind == "error":
                    raise value
                else:
                    number = busy.pop(engine)
                    result, host, process, *used = value
                    self.usage[host, process] = tuple(used)
                    results[number] = self._keep(slices[number], result)
                    lost.pop(number, None)
                    idle.append(engine)

    def _arrived(self) -> Connection:
        assert self.arrivals is not None
        engine = self.arrivals.take()
        self.engines.append(engine)
        return engine

    def _read(self, one: Slice) -> list[Any] | None:
        """The result of an earlier attempt, if it is complete."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            found = json.loads((self.folder / f"{one.key}.json").read_text())
            return [[_sample(s) for s in samples] for samples in found] if one.call == "generate" else found
        return None

    def _keep(self, one: Slice, result: list[Any]) -> list[Any]:
        plain = [[dataclasses.asdict(s) for s in r] for r in result] if one.call == "generate" else result
        write_atomic(self.folder / f"{one.key}.json", json.dumps(plain))
        return result


def split(costs: Sequence[int], number: int) -> list[tuple[int, int]]:
    """At most `number` contiguous ranges (first, end) of items, none of them empty, of about equal cost.
    Costs are positive.
    """
    total, before, ranges = sum(costs), 0, []
    first = 0
    for index, cost in enumerate(costs):
        before += cost
        last = index + 1 == len(costs)
        if last or before * number >= total * (len(ranges) + 1):
            ranges.append((first, index + 1))
            first = index + 1
    return ranges


def run_slice(engine: Engine, one: Slice) -> list[Any]:
    """The result of a slice: per request its samples, or per group its outputs."""
    if one.call == "generate":
        return engine.generate(one.items)
    return [
        {name: list(values) for name, values in row.items()} for row in engine.score(one.items, one.outputs)
    ]


def _sample(fields: Mapping[str, Any]) -> Sample:
    return Sample(**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
