"""The nouns every other module speaks. All frozen; none imports torch when loaded.

Shapes: B rows, T steps, U units (a unit is a pair, a group or a row, whichever an objective declares).
Alignment: `logprobs[t]`, `mask[t]` and `advantages[t]` all speak of step t itself.
Polarity: a mask is True where it counts. Absent is not zero: a column nobody wrote does not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.components.protocols import Engine

Stop = Literal["end", "length", "environment", "error"]
"""Why a trajectory ended: its own end-of-turn, the token limit, the world, or a failure."""

OK = "ok"
"""The status of a reward that can be trained on; anything else is `failed: why` or `skipped: why`."""


class Message(TypedDict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the policy is asked: the messages before its first decision."""

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """Steps `start:stop` of a trajectory: a turn or a reasoning step, with its own reward if it has one."""

    start: int
    stop: int
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One path of decisions by one actor; a person's answer read from disk is one too.

    `messages` is what follows the prompt (usually one assistant message). `inputs["tokens"]` (T) holds prompt and
    continuation as the policy's ids, `mask` (T) is True where the actor chose. Both stay empty until encoded.
    `logprobs` (T) are the sampler's, None when nobody sampled. `parent` = (sibling, step) this path branched from.
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
        """The last message's content: what a reward reads."""
        return self.messages[-1]["content"] if self.messages else ""


Column = Sequence[Any]
"""One value a trajectory: a number, a string, or a list (T) for columns that speak of steps."""


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt, its trajectories, and named columns: the one value stages exchange.

    SFT: groups of one. A preference pair: a group of two, chosen first. GRPO: groups of G. Ranking: groups of K.
    """

    prompt: Prompt
    trajectories: tuple[Trajectory, ...]
    columns: Mapping[str, Column] = field(default_factory=dict)

    def with_columns(self, **columns: Column) -> Group:
        return self.extended(columns)

    def extended(self, columns: Mapping[str, Column]) -> Group:
        """The same group with more columns; each must hold one value a trajectory."""
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
"""What an annotator returns: column name -> one `Column` a group, in the order of the groups it was given."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows packed for one forward pass. `inputs["tokens"]` is ragged: a LongTensor (T_b,) a row, padding nowhere.

    mask (B,T) with T the longest row; columns (B,T,...) or (B,); `group` (B,) says which rows are siblings;
    `unit` (B,) numbers the units from 0; `ids` names the prompts for error messages.
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
            raise KeyError(f"column {name!r} was never written; this batch has {sorted(self.columns)}") from None

    def row_sum(self, steps: Tensor) -> Tensor:
        """(B,T) -> (B,): the sum over the chosen steps of each row."""
        return (steps * self.mask).sum(-1)

    def row_mean(self, steps: Tensor) -> Tensor:
        """(B,T) -> (B,): the mean over the chosen steps; 0 for a row without any."""
        return self.row_sum(steps) / self.mask.sum(-1).clamp(min=1)

    def pair(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) -> chosen (U,), rejected (U,): rows come in pairs, chosen first."""
        return rows[0::2], rows[1::2]

    def margin(self, rows: Tensor) -> Tensor:
        """(B,) or (B,T) -> (U,): chosen minus rejected, steps summed over each row first."""
        if rows.dim() == 2:
            rows = self.row_sum(rows)
        chosen, rejected = self.pair(rows)
        return chosen - rejected


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a learner computed; only what was asked for is set. Reading anything else is an error."""

    values_by_ask: Mapping[str, Tensor]

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.values_by_ask[name]
        except KeyError:
            raise AttributeError(f"{name!r} was not asked of the learner; it gave {sorted(self.values_by_ask)}") from None


@dataclass(frozen=True, slots=True)
class Terms:
    """An objective's unreduced loss (B,T) | (B,) | (U,) and unreduced metrics of the same kinds."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)

    def times(self, name: str, column: Tensor) -> Terms:
        """The terms multiplied by a column of weights, (B,T) or (B,), which becomes a metric of that name."""
        spread = column[:, None] if self.loss.dim() > column.dim() else column
        if spread.dim() != self.loss.dim():
            raise ValueError(f"terms of shape {tuple(self.loss.shape)} cannot be multiplied by {name!r} of shape {tuple(column.shape)}: "
                             "a column of steps is for an objective with a term a step")
        return Terms(self.loss * spread, {**self.metrics, name: column})


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished product in the store. `digest` is its key: recipe slice, inputs and code that made it."""

    kind: Literal["data", "groups", "weights", "report"]
    path: Path
    digest: str
    parents: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to an engine: token ids in, `count` samples out. `seed` alone decides the randomness."""

    tokens: Sequence[int]
    count: int = 1
    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of an engine: new token ids (the stop token included when it came) and their log-probs."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Stop


@dataclass(frozen=True, slots=True)
class Context:
    """What a piece may use besides its arguments. Frozen: nothing here is a place to keep memory; what a piece leaves out it
    counts in `counts` by its reason, for the stage's summary, and reads nothing there."""

    models: Mapping[str, Engine] = field(default_factory=dict)
    environment: Any = None
    seed: int = 0
    round: int = 0
    counts: Counter[str] = field(default_factory=Counter)
