"""The verbs: what each kind of piece can be asked to do. Anything with memory also has `state()` and `restore()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ratchet.components.types import Batch, Columns, Context, Group, Outputs, Prompt, Request, Sample, Terms, Trajectory

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


@runtime_checkable
class Memory(Protocol):
    """What is part of a checkpoint. `state()` is tensors, numbers, text, records of `ratchet.components.types`, in mappings and lists."""

    def state(self) -> dict[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


class Objective(Protocol):
    """Unreduced loss terms from log-probs, masks and columns. Never sees tokens, never takes a mean."""

    def __call__(self, out: Outputs, batch: Batch) -> Terms: ...


class Annotator(Protocol):
    """Columns for groups: rewards, advantages, log-probs of another model."""

    def __call__(self, groups: Sequence[Group], ctx: Context) -> Columns: ...


class Selector(Protocol):
    """Groups in, groups out: fewer, smaller, paired or mixed with remembered ones."""

    def __call__(self, groups: Sequence[Group], ctx: Context) -> list[Group]: ...


class Rollout(Protocol):
    """How prompts become groups of experience."""

    def __call__(self, prompts: Sequence[Prompt], ctx: Context) -> list[Group]: ...


class Engine(Protocol):
    """Answers: samples tokens and scores given ones with the weights it holds."""

    weights: str  # digest of the weights it answers with

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """One list of `count` samples a request, in order."""
        ...

    def encode(self, group: Group) -> Group:
        """The group with every trajectory's `inputs["tokens"]` and `mask` filled for this engine's model."""
        ...

    def score(self, groups: Sequence[Group], asks: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """Per group: ask -> one value a trajectory (`logprobs`, `entropy`: a list (T); `scores`: a float)."""
        ...

    def load(self, weights: Path) -> None:
        """Answer with these weights from now on."""
        ...


class Learner(Memory, Protocol):
    """Owns parameters, optimiser and precision; turns rows into outputs and gradients into steps."""

    steps: int  # updates its optimiser took, those before a restart included

    def __call__(self, batch: Batch, asks: frozenset[str]) -> Outputs: ...
    def backward(self, loss: Tensor) -> None: ...
    def step(self) -> Mapping[str, float]: ...
    def save(self, path: Path) -> None: ...


class Adapter(Protocol):
    """Chooses which parameters learn. Returns the module to train."""

    def __call__(self, model: Module) -> Module: ...


@runtime_checkable
class Knob(Memory, Protocol):
    """A number that may move during training."""

    def value(self) -> float: ...
    def update(self, metrics: Mapping[str, float]) -> None: ...


class Tracker(Protocol):
    """Where numbers go. Must never block or fail the work it watches."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...


class Prompts(Protocol):
    """Which prompts come next. One that learns from answers also has `update(groups)`, called with what was just scored.

    `rounds`, how many there will be, is there to see early whether the prompts suffice: the choice must not depend on it,
    for a run whose number of rounds is changed keeps those it has made.
    """

    def __call__(self, prompts: Sequence[Prompt], count: int, round: int, rounds: int, seed: int) -> list[Prompt]: ...


class Environment(Protocol):
    """A world for one episode; make a new one for the next."""

    def begin(self, prompt: Prompt) -> str: ...
    def step(self, action: str) -> tuple[str, float | None, bool]: ...


__all__ = [
    "Adapter", "Annotator", "Engine", "Environment", "Knob", "Learner", "Memory", "Objective", "Prompts", "Rollout", "Selector", "Tracker",
    "Trajectory",
]
