"""Protocols (interfaces) of the kinds of pieces. Stateful implementations also have `state()` and
`restore()`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ratchet.components.types import (
    Batch,
    Columns,
    Context,
    Group,
    Message,
    Observation,
    Outputs,
    Prompt,
    Read,
    Request,
    Sample,
    Step,
    Terms,
    Trajectory,
)

if TYPE_CHECKING:
    from torch import Tensor, dtype
    from torch.nn import Module

    from ratchet.components.text.contract import Contract
    from ratchet.components.text.tokenizer import Tokenizer


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

    @property
    def weights(self) -> str:
        """Digest of the loaded weights."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """One list of `count` samples per request, in order."""
        ...

    def encode(self, group: Group) -> Group:
        """Fill `inputs["tokens"]` and `mask` of every trajectory for this engine's model."""
        ...

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, up to where the model's answer begins."""
        ...

    def encode_reply(self, messages: Sequence[Message], *, ended: bool = True) -> list[int]:
        """Token ids between an answer and the next one, with `messages` in between: what follows the answer's
        end-of-turn token (with `ended=False`, that token first), up to where the next answer begins.
        Appended to the tokens so far, so that sampled tokens are never decoded and encoded again.
        `ContractError` for a chat template that renders these depending on earlier turns.
        """
        ...

    def encode_text(self, text: str) -> list[int]:
        """Token ids of text inside a turn, such as a cue."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without special tokens."""
        ...

    def offsets(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """First and last character (exclusive) of each token in `decode(tokens)`."""
        ...

    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """Per group, requested outputs: one value per trajectory (`logprobs`, `entropy`: a list (T);
        `scores`: a float).
        """
        ...

    def load(self, path: Path) -> None:
        """Load the weights of a model directory."""
        ...


class ModelEngine(Engine, Protocol):
    """Inference engine that gives access to its model, as the built-in one does: pieces may read its states
    and weights.
    """

    @property
    def model(self) -> Module: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def contract(self) -> Contract:
        """What another model must share to score this one's tokens."""
        ...


class Environment(Protocol):
    """An environment of one episode. It depends on the prompt and the actions only, so a state is reached
    again by replaying its actions, in any process. Its randomness is a function of `prompt.id` and
    `prompt.meta`.

    An action that it does not understand is an observation with `valid=False`, and a lost episode a reward;
    an exception means that the environment is broken: the trajectory has failed, without any reward.

    An environment that asks models also has a static method `step_many(environments, actions, models)`,
    which steps many episodes at once and returns one `Step` each.
    """

    def begin(self, prompt: Prompt) -> Observation:
        """Start an episode. The messages follow those of the prompt."""
        ...

    def step(self, action: str) -> Step:
        """Take an action: the text of the policy's turn."""
        ...

    def score(self) -> Mapping[str, float]:
        """Measures of the episode so far by name, such as whether it is solved."""
        ...


@dataclass(frozen=True, slots=True)
class ArrayStep:
    """An environment's response to actions of N episodes: `observations` (N,O), `rewards` (N,), and `done`
    (N,), True for episodes that ended; all are numpy arrays.
    """

    observations: Any
    rewards: Any
    done: Any


class ArrayEnvironment(Protocol):
    """Episodes of one environment with observations of O and actions of A real numbers, stepped together. An
    episode depends on its prompt and its own actions only, so that its numbers are the same alone and
    among others. Actions of episodes that ended are ignored. A state that is not finite: the episode broke.

    An environment with an expert, whose actions are to be imitated, also has `expert(normals)`: the expert's
    actions (N,A) in the current states, given standard normal noise (N,A).
    """

    observation: int
    action: int

    def begin(self, prompts: Sequence[Prompt]) -> Any:
        """Start one episode for each prompt: observations (N,O)."""
        ...

    def step(self, actions: Any) -> ArrayStep:
        """Take actions (N,A)."""
        ...

    def score(self) -> list[Mapping[str, float]]:
        """Measures of each episode so far by name."""
        ...

    def summary(self) -> list[str]:
        """A text about each episode, which stands for it in reports."""
        ...


class Learner(Memory, Protocol):
    """Training backend: owns parameters, optimizer and precision; computes outputs and updates."""

    steps: int  # optimizer updates so far, including those before a restart

    def __call__(self, batch: Batch, outputs: frozenset[str | Read]) -> Outputs: ...
    def backward(self, loss: Tensor) -> None: ...

    def step(self, at: tuple[float, float] | None = None) -> Mapping[str, float]:
        """One optimizer update. `at`: where it begins in the learning-rate schedule and how much of it it
        takes, in units of the schedule's length; by default update number `steps` and 1.
        """
        ...

    def save(self, path: Path, *, precision: dtype = ..., each_machine: bool = False) -> None:
        """Save a model directory with weights in `precision` (float32), from rank 0 or, as `path` is another
        folder on each machine, from the first rank of each.
        """
        ...


class Adapter(Protocol):
    """Selects the trained parameters (e.g. LoRA). Returns the module to train."""

    def __call__(self, model: Module) -> Module: ...


@runtime_checkable
class Schedule(Memory, Protocol):
    """A schedule: a number that may change during training."""

    def value(self) -> float: ...
    def update(self, metrics: Mapping[str, float]) -> None:
        """Learn from the metrics of an optimizer step; NaN: no row of the step has that metric."""
        ...


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
    "ArrayEnvironment",
    "ArrayStep",
    "Engine",
    "Environment",
    "Learner",
    "Memory",
    "ModelEngine",
    "Objective",
    "Prompts",
    "Rollout",
    "Schedule",
    "Selector",
    "Trajectory",
]
