"""Shards of a stage: its requests and texts split into slices, computed by one inference engine per device of
every machine.

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
import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from ratchet.components.inference.choose import Kind, engine_of
from ratchet.components.recipes.families import family_of
from ratchet.components.stages import progress
from ratchet.components.stages.slices import Arrivals, Shards, Slice, run_slice, split
from ratchet.components.text.chat import encode, encode_whole
from ratchet.components.text.codec import Codec
from ratchet.components.training.packing import pack
from ratchet.components.types import Group, Request, Sample

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine, ModelEngine
    from ratchet.components.text.tokenizer import Tokenizer

STAGES = ("demonstrate", "rollout", "annotate", "select", "prepare_offline", "answers", "evaluate")
"""Kinds of stages whose calls are split."""
FOLDER = "shards"
MOST_SLICES = 256
BATCHES = 4
"""Scoring micro-batches in a slice, at most."""
LEAST_SLICES = 8
"""Of a short call with as many scoring micro-batches: one slice would leave all engines but one idle."""


_shards: Shards | None = None
_engines: tuple[Sequence[Connection], Arrivals | None] = (), None


def connect(engines: Sequence[Connection], arrivals: Arrivals | None = None) -> None:
    """Set the engine processes of this stage process, and where those of other machines arrive."""
    global _engines
    _engines = engines, arrivals


@contextlib.contextmanager
def sharding(does: str, folder: Path) -> Iterator[Shards | None]:
    """While active, engines of `sharded_engine` split their calls, if the kind of stage does."""
    global _shards
    engines, arrivals = _engines
    _shards = Shards(folder / FOLDER, list(engines), arrivals) if does in STAGES else None
    try:
        yield _shards
    finally:
        _shards = None


def sharded_engine(profile: Mapping[str, Any], path: Path, kind: Kind = "policy") -> Engine:
    """As `engine_of`, over all engine processes of the stage; a small model of arrays is in this process."""
    here = _shards is None or family_of(path)
    return (
        engine_of(profile, path, kind)
        if here or _shards is None
        else ShardedEngine(_shards, profile, path, kind)
    )


@final
class ShardedEngine(Codec):
    """An engine that splits its calls. What it does not define is that of an engine in this process, loaded
    when it is needed; with engine processes, this process reads the tokenizer only.
    """

    weights: str

    def __init__(self, shards: Shards, profile: Mapping[str, Any], path: Path, kind: Kind) -> None:
        self.kind: Kind = kind
        self.shards, self.profile = shards, profile
        self._local: ModelEngine | None = None
        shards.models += 1
        self.number = shards.models
        self.load(path)

    def load(self, path: Path) -> None:
        """Use the weights of a model directory."""
        from ratchet.components.inference.torch import weights_digest

        self.path, self.weights = Path(path), weights_digest(Path(path))
        self._tokenizer: Tokenizer | None = None
        if self._local is not None:
            self._local.load(path)
        elif not self.shards.engines:
            _ = self.local

    @property
    def local(self) -> ModelEngine:
        """The engine in this process."""
        if self._local is None:
            self._local = engine_of(self.profile, self.path, self.kind)
        return self._local

    @property
    def tokenizer(self) -> Tokenizer:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._local is not None:
            return self._local.tokenizer
        if self._tokenizer is None:
            from ratchet.components.models.load import load_tokenizer

            self._tokenizer = load_tokenizer(self.path)
        return self._tokenizer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.local, name)

    def encode(self, group: Group) -> Group:
        """Add `inputs["tokens"]` and `mask` to trajectories without tokens."""
        from ratchet.components.models.reward import is_published

        render = encode_whole if self.kind == "reward" and is_published(self.path) else encode
        return group.replace([render(self.tokenizer, group.prompt, t) for t in group.trajectories])

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
        bare = [Group(g.prompt, g.trajectories) for g in map(self.encode, groups)]
        tokens = self.profile["tokens_per_microbatch"]
        batches = [len(batch.group) for batch in pack(bare, unit="row", tokens=tokens)]
        places = [(g, i) for g, group in enumerate(bare) for i in range(len(group.trajectories))]
        found: list[Mapping[str, list[Any]]] = [{output: [] for output in outputs} for _ in groups]
        number = min(len(batches), MOST_SLICES, max(LEAST_SLICES, -(-len(batches) // BATCHES)))
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


def reproducible(profile: Mapping[str, Any]) -> bool:
    """Whether equal calls of an engine give equal bits: PyTorch on CPU."""
    import torch

    return profile["engine"] == "torch" and not torch.cuda.is_available()


def serve(
    connection: Connection, profile: Mapping[str, Any], usage: Callable[[], tuple[float, float]]
) -> None:
    """Main loop of an engine process: receives a model and a slice, sends the result, until the stage ends.
    A model stays loaded; if its engine was given other weights, these replace them.
    """
    engines: dict[int, tuple[str, Engine | None]] = {}
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
            result = run_slice(engine, one)
            connection.send(("result", (result, socket.gethostname(), os.getpid(), *usage())))
