"""Data model of the pipeline. All classes are frozen; importing this module does not import torch.

Shapes: B rows, T steps (tokens), U units (pairs, groups or rows, as an objective declares).
Alignment: `logprobs[t]`, `mask[t]`, `advantages[t]` refer to step t; the shift by one is in the model code.
Masks are True where a step counts (the loss mask). A column that was not written does not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


Stop = Literal["end", "length", "environment", "turns", "error"]
"""Why a trajectory ended: end-of-turn token or stop string, token limit, environment, turn limit, failure."""

OK = "ok"
"""Status of a valid reward; others are `failed: reason` or `skipped: reason`."""


class Message(TypedDict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """The messages before the policy's first action, with reference answer, source and metadata.

    `inputs`: what the model is given besides the messages, as JSON can hold it. `images`: digest -> data URL,
    see `ratchet.components.text.images`.
    """

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """Steps `start:stop` of a trajectory (a turn or a reasoning step), with an optional reward.

    `actor`: who wrote it (`policy`, `environment`, ...). `valid`: False for an action that the environment
    did not understand. `numbers`: further numbers by name, such as a cost or a value.
    """

    start: int
    stop: int
    reward: float | None = None
    actor: str = "policy"
    kind: Literal["think", "act", "observe", "reflect"] = "act"
    valid: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode of one actor: a sampled answer, or a human answer read from disk.

    `messages`: everything after the prompt (usually one assistant message). `inputs["tokens"]` (T): token ids
    of prompt and continuation; or `observations` (T,O) and `actions` (T,A). `mask` (T): the loss mask, True
    on the actor's own steps. `logprobs` (T): the sampler's, or None. `parent`: (sibling, step) it left.
    """

    messages: tuple[Message, ...]
    inputs: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    mask: Sequence[bool] = ()
    logprobs: Sequence[float] | None = None
    actor: str = "human"
    weights: str = ""
    spans: tuple[Span, ...] = ()
    parent: tuple[int, int] | None = None
    stop: Stop = "end"
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Content of the last message, which rewards read. An episode ends with the policy's message too."""
        return self.messages[-1]["content"] if self.messages else ""


Column = Sequence[Any]
"""One value per trajectory: a number, a string, or a list (T) for per-step columns."""


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt, its trajectories, and named columns: the interchange format between stages.

    SFT: groups of 1. Preference pairs: groups of 2, chosen first. Rankings and sampled answers: of K.
    """

    prompt: Prompt
    trajectories: tuple[Trajectory, ...]
    columns: Mapping[str, Column] = field(default_factory=dict)

    def with_columns(self, **columns: Column) -> Group:
        return self.extended(columns)

    def extended(self, columns: Mapping[str, Column]) -> Group:
        """The group with more columns, each with one value per trajectory."""
        for name, values in columns.items():
            if len(values) != len(self.trajectories):
                raise ValueError(
                    f"column {name!r} of group {self.prompt.id!r} has {len(values)} values "
                    f"for {len(self.trajectories)} trajectories"
                )
        return Group(self.prompt, self.trajectories, {**self.columns, **columns})

    def take(self, indices: Sequence[int]) -> Group:
        """The trajectories at `indices`, in that order, with their columns."""
        return Group(
            self.prompt,
            tuple(self.trajectories[i] for i in indices),
            {name: [values[i] for i in indices] for name, values in self.columns.items()},
        )

    def replace(self, trajectories: Sequence[Trajectory]) -> Group:
        return Group(self.prompt, tuple(trajectories), self.columns)


Columns = Mapping[str, Sequence[Column]]
"""Result of an annotator: column name -> one `Column` per group, in the order of the groups."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Micro-batch of packed rows. `inputs["tokens"]` is ragged, without padding: one LongTensor (T_b,) per
    row; `observations` and `actions` likewise, floats. `inputs["images"]`: data URLs, one tuple per row.

    mask (B,T) with T the longest row; columns (B,T,...) or (B,); `group` (B,): group number of each row;
    `unit` (B,): unit number of each row, from 0; `ids`: prompt ids, for error messages.
    """

    inputs: Mapping[str, Any]
    mask: Tensor
    columns: Mapping[str, Tensor]
    group: Tensor
    unit: Tensor
    ids: tuple[str, ...]

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(
                f"column {name!r} was never written; this batch has {sorted(self.columns)}"
            ) from None

    def row_sum(self, steps: Tensor) -> Tensor:
        """(B,T) -> (B,): sum over the loss mask of each row."""
        return (steps * self.mask).sum(-1)

    def row_mean(self, steps: Tensor) -> Tensor:
        """(B,T) -> (B,): mean over the loss mask of each row; 0 for an empty mask."""
        return self.row_sum(steps) / self.mask.sum(-1).clamp(min=1)

    def pair(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) -> chosen (U,), rejected (U,). Rows are pairs, chosen first."""
        return rows[0::2], rows[1::2]

    def margin(self, rows: Tensor) -> Tensor:
        """(B,) or (B,T) -> (U,): chosen minus rejected; per-step values are summed over each row first."""
        if rows.dim() == 2:
            rows = self.row_sum(rows)
        chosen, rejected = self.pair(rows)
        return chosen - rejected


@dataclass(frozen=True, slots=True)
class Read:
    """A requested output that an objective's own file computes: `function(reading, **options)`, with the
    shared forward pass (`ratchet.components.models.reading.Reading`). `options` are (name, value) pairs.
    """

    name: str
    function: Callable[..., Tensor]
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of a forward pass. Only the requested ones exist; reading another is an `AttributeError`."""

    by_name: Mapping[Any, Tensor]  # by name, or by `Read`

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.by_name[name]
        except KeyError:
            raise AttributeError(
                f"output {name!r} was not requested; available: {sorted(map(str, self.by_name))}"
            ) from None


@dataclass(frozen=True, slots=True)
class Terms:
    """An objective's unreduced loss, (B,T), (B,) or (U,), and unreduced metrics of the same shapes."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)

    def weighted(self, name: str, column: Tensor) -> Terms:
        """Multiply the terms by a weight column, (B,T) or (B,), which becomes a metric of that name."""
        spread = column[:, None] if self.loss.dim() > column.dim() else column
        if spread.dim() != self.loss.dim():
            raise ValueError(
                f"weight column {name!r} of shape {tuple(column.shape)} does not fit terms of shape "
                f"{tuple(self.loss.shape)}: a per-step column needs an objective with one term per step"
            )
        return Terms(self.loss * spread, {**self.metrics, name: column})


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished output in the store. `digest` is its store key: a hash of recipe slice, inputs and code."""

    kind: Literal["data", "groups", "weights", "report"]
    path: Path
    digest: str
    parents: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One generation request: a prompt's token ids, `count` samples. The random numbers depend on `seed`
    only.

    An answer ends with an end-of-turn token, one of `stop_tokens`, or the token that completes one of
    `stop_strings` in its text. `top_logprobs`: number of likeliest next tokens to return at every step.
    `images`: data URLs of the images that `tokens` have places for, in order.
    """

    tokens: Sequence[int]
    count: int = 1
    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    top_logprobs: int = 0
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated answer: token ids (with the stop token, if any) and their log-probs. `top`, if requested:
    at every step the likeliest tokens with their log-probs, best first.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Stop
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment shows. `valid`: False if it did not understand the action before."""

    messages: tuple[Message, ...] = ()
    valid: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """An environment's response to an action. `done`: the episode ended; `truncated`: it was cut, and says
    nothing about what would have followed. `numbers` go into the span of the action.
    """

    observation: Observation = field(default_factory=Observation)
    reward: float | None = None
    done: bool = False
    truncated: bool = False
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """Resources of a piece besides its arguments. `counts`: what it drops, by reason, for the summary."""

    # engines by name; the encoder of sentences is a function of texts
    models: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    round: int = 0
    counts: Counter[str] = field(default_factory=Counter)
