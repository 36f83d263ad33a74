"""Protocols (interfaces) of the kinds of pieces. Stateful implementations also have `state()` and
`restore()`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ratchet.components.types import (
    Batch,
    Columns,
    Context,
    Group,
    Outputs,
    Prompt,
    Read,
    Request,
    Sample,
    Terms,
    Trajectory,
)

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


@runtime_checkable
class Memory(Protocol):
    """State saved in checkpoints. `state()` returns nested mappings and lists of tensors, numbers, strings
    and records of `ratchet.components.types`.
    """

    def state(self) -> dict[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


class Objective(Protocol):
    """Unreduced loss terms from log-probs, masks and columns. It sees no tokens and takes no mean."""

    def __call__(self, out: Outputs, batch: Batch) -> Terms: ...


class Annotator(Protocol):
    """Computes columns for groups: rewards, advantages, log-probs of another model."""

    def __call__(self, groups: Sequence[Group], ctx: Context) -> Columns: ...


class Selector(Protocol):
    """Filters, pairs or mixes groups."""

    def __call__(self, groups: Sequence[Group], ctx: Context) -> list[Group]: ...


class Rollout(Protocol):
    """Generates groups from prompts."""

    def __call__(self, prompts: Sequence[Prompt], ctx: Context) -> list[Group]: ...


class Engine(Protocol):
    """Inference engine: generates, and scores given tokens."""

    weights: str  # digest of the loaded weights

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """One list of `count` samples per request, in order."""
        ...

    def encode(self, group: Group) -> Group:
        """Fill `inputs["tokens"]` and `mask` of every trajectory for this engine's model."""
        ...

    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """Per group, requested outputs: one value per trajectory (`logprobs`, `entropy`: a list (T);
        `scores`: a float).
        """
        ...

    def load(self, weights: Path) -> None:
        """Load the weights of a model directory."""
        ...


class Learner(Memory, Protocol):
    """Training backend: owns parameters, optimizer and precision; computes outputs and updates."""

    steps: int  # optimizer updates so far, including those before a restart

    def __call__(self, batch: Batch, outputs: frozenset[str | Read]) -> Outputs: ...
    def backward(self, loss: Tensor) -> None: ...
    def step(self) -> Mapping[str, float]: ...
    def save(self, path: Path) -> None: ...


class Adapter(Protocol):
    """Selects the trained parameters (e.g. LoRA). Returns the module to train."""

    def __call__(self, model: Module) -> Module: ...


@runtime_checkable
class Schedule(Memory, Protocol):
    """A schedule: a number that may change during training."""

    def value(self) -> float: ...
    def update(self, metrics: Mapping[str, float]) -> None: ...


class Prompts(Protocol):
    """Prompt sampler. An adaptive one also has `update(groups)`, called with newly scored groups.

    `rounds`, the planned number, serves to detect early that prompts run out. The choice must not depend on
    it, so that a run extended by more rounds keeps the finished ones.
    """

    def __call__(
        self, prompts: Sequence[Prompt], count: int, round: int, rounds: int, seed: int
    ) -> list[Prompt]: ...


__all__ = [
    "Adapter",
    "Annotator",
    "Engine",
    "Learner",
    "Memory",
    "Objective",
    "Prompts",
    "Rollout",
    "Schedule",
    "Selector",
    "Trajectory",
]
