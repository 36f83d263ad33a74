"""Shards of a stage: its requests and texts split into slices, computed by one inference engine per device.

A slice is a part of one call of an engine (`generate` or `score`). Its result is kept in the stage's work
folder, so that a new attempt computes only the slices that are missing. Slices are handed to idle engine
processes, and their results are put together in the order of the call.

On CPU the slices depend on the call and on `max_num_seqs` only, never on the number of engines. The last bits
of a log-prob depend on the answers decoded beside it, so equal slices make equal results, bit for bit, on any
number of engines. With vLLM or on a GPU, where batching is not reproducible, generation is split by the
number of engines. Scoring is split between micro-batches, which changes no bit anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, final

from ratchet.components.errors import StageError
from ratchet.components.inference.choose import Kind, engine_of
from ratchet.components.stages import progress
from ratchet.components.storage.store import write_atomic
from ratchet.components.training.packing import pack
from ratchet.components.types import Group, Message, Request, Sample

STAGES = ("demonstrate", "rollout", "annotate", "select", "prepare_offline", "evaluate")
"""Kinds of stages whose calls are split."""
FOLDER = "shards"
MOST_SLICES = 256
BATCHES = 4
"""Scoring micro-batches in a slice."""
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


@dataclass
class Shards:
    """Results of slices in `folder`, and the connections to the engine processes; none: this process
    computes them. `models`: number of models so far. `usage`: CPU seconds and peak bytes by engine process.
    """

    folder: Path
    engines: list[Connection] = field(default_factory=list)
    models: int = 0
    usage: dict[int, tuple[float, float]] = field(default_factory=dict)

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
        while waiting or busy:
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
            for engine in wait(list(busy)):
                assert isinstance(engine, Connection)
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
                    result, process, *used = value
                    self.usage[process] = tuple(used)
                    results[number] = self._keep(slices[number], result)
                    lost.pop(number, None)
                    idle.append(engine)

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


_shards: Shards | None = None
_engines: Sequence[Connection] = ()


def connect(engines: Sequence[Connection]) -> None:
    """Set the engine processes of this stage process."""
    global _engines
    _engines = engines


@contextlib.contextmanager
def sharding(does: str, folder: Path) -> Iterator[Shards | None]:
    """While active, engines of `sharded_engine` split their calls, if the kind of stage does."""
    global _shards
    _shards = Shards(folder / FOLDER, list(_engines)) if does in STAGES else None
    try:
        yield _shards
    finally:
        _shards = None


def sharded_engine(profile: Mapping[str, Any], path: Path, kind: Kind = "policy") -> Any:
    """As `engine_of`, over all engine processes of the stage."""
    return engine_of(profile, path, kind) if _shards is None else ShardedEngine(_shards, profile, path, kind)


@final
class ShardedEngine:
    """An engine that splits its calls. What it does not define is that of an engine in this process, loaded
    when it is needed; with engine processes, this process reads the tokenizer only.
    """

    weights: str

    def __init__(self, shards: Shards, profile: Mapping[str, Any], path: Path, kind: Kind) -> None:
        self.kind: Kind = kind
        self.shards, self.profile = shards, profile
        self._local: Any = None
        shards.models += 1
        self.number = shards.models
        self.load(path)

    def load(self, path: Path) -> None:
        """Use the weights of a model directory."""
        from ratchet.components.inference.torch import weights_digest

        self.path, self.weights = Path(path), weights_digest(Path(path))
        self._codec: Any = None
        if self._local is not None:
            self._local.load(path)
        elif not self.shards.engines:
            _ = self.local

    @property
    def local(self) -> Any:
        """The engine in this process."""
        if self._local is None:
            self._local = engine_of(self.profile, self.path, self.kind)
        return self._local

    @property
    def codec(self) -> Any:
        """Text to tokens and back."""
        if self._local is not None:
            return self._local
        if self._codec is None:
            self._codec = _Codec(self.path, self.kind)
        return self._codec

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.local, name)

    def encode(self, group: Group) -> Group:
        return self.codec.encode(group)

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        return self.codec.encode_prompt(messages)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.codec.decode(tokens)

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """As the engine's own, request by request."""
        rows = [max(1, request.count) for request in requests]
        number = self._slices(sum(rows))
        slices = [
            self._slice("generate", requests[first:end], frozenset(), sum(rows[first:end]))
            for first, end in split(rows, number)
        ]
        return [samples for result in self._compute(slices) for samples in result]

    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """As the engine's own, group by group."""
        from ratchet.components.inference.torch import SCORE_TOKENS

        bare = [Group(g.prompt, g.trajectories) for g in map(self.encode, groups)]
        batches = [len(batch.group) for batch in pack(bare, unit="row", tokens=SCORE_TOKENS)]
        places = [(g, i) for g, group in enumerate(bare) for i in range(len(group.trajectories))]
        found: list[Mapping[str, list[Any]]] = [{output: [] for output in outputs} for _ in groups]
        number = min(MOST_SLICES, -(-len(batches) // BATCHES))
        parts, taken = [], 0
        for first, end in split([1] * len(batches), number):
            rows = places[taken : (taken := taken + sum(batches[first:end]))]
            parts.append(
                {g: [i for other, i in rows if other == g] for g in dict.fromkeys(g for g, _ in rows)}
            )
        slices = [
            self._slice(
                "score", [bare[g].take(i) for g, i in part.items()], outputs, sum(map(len, part.values()))
            )
            for part in parts
        ]
        for part, result in zip(parts, self._compute(slices), strict=True):
            for g, values in zip(part, result, strict=True):
                for output in outputs:
                    found[g][output].extend(values[output])
        return found

    def _slices(self, rows: int) -> int:
        """Number of slices of a generation of `rows` answers."""
        waves = -(-rows // self.profile["max_num_seqs"])
        if reproducible(self.profile):
            return min(MOST_SLICES, waves)
        engines = max(1, len(self.shards.engines))
        return max(engines, min(MOST_SLICES, waves // 4))  # long slices keep continuous batching busy

    def _slice(self, call: str, items: Sequence[Any], outputs: frozenset[str], answers: int) -> Slice:
        named = f"{self.weights} {self.kind} {call} {sorted(outputs)} {items!r}"
        key = hashlib.sha256(named.encode()).hexdigest()[:24]
        return Slice(call, items, outputs, answers, key)

    def _compute(self, slices: Sequence[Slice]) -> list[list[Any]]:
        model = {"number": self.number, "path": str(self.path), "kind": self.kind}
        return self.shards.compute(slices, model, lambda one: run_slice(self.local, one))


class _Codec:
    """Text of a model to tokens and back, without its weights."""

    def __init__(self, path: Path, kind: Kind) -> None:
        from ratchet.components.models.load import load_tokenizer
        from ratchet.components.models.reward import is_published
        from ratchet.components.text.chat import encode, encode_whole

        self.tokenizer = load_tokenizer(path)
        self.render = encode_whole if kind == "reward" and is_published(path) else encode

    def encode(self, group: Group) -> Group:
        return group.replace([self.render(self.tokenizer, group.prompt, t) for t in group.trajectories])

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        from ratchet.components.text.chat import encode_prompt

        return encode_prompt(self.tokenizer, messages)

    def decode(self, tokens: Sequence[int]) -> str:
        from ratchet.components.text.chat import decode_answer

        return decode_answer(self.tokenizer, tokens)


def reproducible(profile: Mapping[str, Any]) -> bool:
    """Whether equal calls of an engine give equal bits: PyTorch on CPU."""
    import torch

    return profile["engine"] == "torch" and not torch.cuda.is_available()


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


def run_slice(engine: Any, one: Slice) -> list[Any]:
    """The result of a slice: per request its samples, or per group its outputs."""
    if one.call == "generate":
        return engine.generate(one.items)
    return [
        {name: list(values) for name, values in row.items()} for row in engine.score(one.items, one.outputs)
    ]


def serve(
    connection: Connection, profile: Mapping[str, Any], usage: Callable[[], tuple[float, float]]
) -> None:
    """Main loop of an engine process: receives a model and a slice, sends the result, until the stage ends.
    A model stays loaded; if its engine was given other weights, these replace them.
    """
    engines: dict[int, tuple[str, Any]] = {}
    with progress.forward(lambda number: connection.send(("progress", number))):
        while True:
            try:
                model, one = connection.recv()
            except (EOFError, OSError):
                return
            path, engine = engines.get(model["number"], ("", None))
            if engine is None:
                engine = engine_of(profile, Path(model["path"]), model["kind"])
            elif path != model["path"]:
                engine.load(Path(model["path"]))
            engines[model["number"]] = (model["path"], engine)
            connection.send(("result", (run_slice(engine, one), os.getpid(), *usage())))


def _sample(fields: Mapping[str, Any]) -> Sample:
    return Sample(**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
