"""Raw records between parsing and building: the record, the result of a transform, and shared helpers.

A transform is a piece `(records, count_tokens, *, options) -> FilterResult`, which reports every record it
drops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ratchet.components.types import Message, Prompt

CountTokens = Callable[[Sequence[Message]], int]
"""Function from messages to their rendered length in tokens of the policy."""


@dataclass(frozen=True)
class Conversation:
    """One raw record.

    `opening`: number of messages that are a fixed prompt (0: the builder chooses). `rejected`: the worse
    continuation of a preference row. `answer`: reference answer of a verifiable prompt. `rating`: mean human
    rating. `label`: whether the answer is desirable. `published`: published split ("" if the data set
    has none). `inputs`: those of `Prompt`.
    `topic_as_system`: use the topic as system message too; otherwise it only determines the split.
    """

    id: str
    messages: tuple[Message, ...]
    topic: str | None = None
    rating: float | None = None
    ratings: Mapping[str, float] = field(default_factory=dict)
    opening: int = 0
    rejected: tuple[Message, ...] = ()
    answer: str | None = None
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    topic_as_system: bool = True
    label: bool | None = None
    published: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def head(self) -> tuple[Message, ...]:
        """The topic as a system message, unless the record has its own or `topic_as_system` is off."""
        if (
            self.topic
            and self.topic_as_system
            and not (self.messages and self.messages[0]["role"] == "system")
        ):
            return ({"role": "system", "content": self.topic},)
        return ()

    def prompt(
        self, name: str, messages: tuple[Message, ...], meta: Mapping[str, Any], answer: str | None = None
    ) -> Prompt:
        """A prompt from this record with its source and inputs."""
        return Prompt(name, messages, answer, self.source, meta, self.inputs)

    @property
    def text(self) -> str:
        """All messages except system messages, one per line."""
        return "\n".join(m["content"] for m in (*self.messages, *self.rejected) if m["role"] != "system")

    def rewritten(self, change: Callable[[str], str]) -> Conversation:
        """The record with `change` applied to every text but the reference answer."""

        def each(messages: Sequence[Message]) -> tuple[Message, ...]:
            return tuple({"role": m["role"], "content": change(m["content"])} for m in messages)  # type: ignore[misc]

        topic = change(self.topic) if self.topic else self.topic
        return replace(self, messages=each(self.messages), rejected=each(self.rejected), topic=topic)

    def as_json(self) -> dict[str, Any]:
        """JSON-serialisable values for the quarantine file."""
        return {
            "id": self.id,
            "topic": self.topic,
            "messages": list(self.messages),
            "rating": self.rating,
            **({"rejected": list(self.rejected)} if self.rejected else {}),
        }


@dataclass(frozen=True)
class Rejected:
    """A dropped record. A `copy` does not count as lost: its content is kept in another record, or the recipe
    excludes it. `source`: label of its source, if it was dropped in reading one of several. `reason`: why, as
    records are counted by it; `detail`: what concerns this record alone, such as its place.
    """

    id: str
    reason: str
    record: Any = None
    copy: bool = False
    source: str = ""
    detail: str = ""

    @property
    def explained(self) -> str:
        """The reason with its detail."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


MOST_REASONS = 20


@dataclass(frozen=True)
class FilterResult:
    """Result of a curation step: kept records, rejected records, and counts of changes."""

    kept: list[Any]
    dropped: list[Rejected] = field(default_factory=list)
    changed: Mapping[str, int] = field(default_factory=dict)

    def reasons(self) -> dict[str, int]:
        """Number of rejected records by reason: of the `MOST_REASONS` most frequent, and of all others."""
        counted = Counter(d.reason for d in self.dropped)
        shown = dict(sorted(counted.most_common(MOST_REASONS)))
        others = counted.total() - sum(shown.values())
        return shown | ({"other reasons": others} if others else {})


def memoize_token_count(count: CountTokens) -> CountTokens:
    """Cached version of `count`: curation measures the same conversation when bounding, building and
    describing it.
    """
    known: dict[tuple[tuple[str, str], ...], int] = {}

    def cached(messages: Sequence[Message]) -> int:
        key = tuple((m["role"], m["content"]) for m in messages)
        if key not in known:
            known[key] = count(messages)
        return known[key]

    return cached


SHORT = 32
"""Conversations up to this many turns are measured whole first, since most fit."""


def prefix_within(
    head: Sequence[Message], messages: Sequence[Message], max_tokens: int | None, count: CountTokens
) -> int:
    """Number of `messages` that fit with `head` into `max_tokens`, by galloping binary search (a dozen
    measurements for 5,000 turns).
    """
    if (
        max_tokens is None
        or not messages
        or (len(messages) <= SHORT and count([*head, *messages]) <= max_tokens)
    ):
        return len(messages)
    low, high = 0, len(messages)
    step = 16  # gallop first, to avoid rendering a long conversation whole
    while low + step < high and count([*head, *messages[: low + step]]) <= max_tokens:
        low, step = low + step, step * 2
    high = min(high, low + step)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count([*head, *messages[:middle]]) <= max_tokens else (low, middle - 1)
    return low
