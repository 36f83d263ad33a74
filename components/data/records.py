"""Raw records on their way to groups: the record, what a transform returns, and helpers both share.

A transform is a piece `(records, count_tokens, *, options) -> Sifted`: it never drops in silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ratchet.components.types import Message

CountTokens = Callable[[Sequence[Message]], int]
"""The length of a rendered conversation in tokens of the policy."""


@dataclass(frozen=True)
class Conversation:
    """One raw record. `opening` messages are a prompt given by the data (0: the builder chooses); `rejected` is the
    worse continuation of a preference row, `answer` the reference of a verifiable prompt, `rating` a mean of people's, `label`
    whether people liked the answer (KTO), `published` the split of the data set that it stands in ("": the data set has one part).
    `topic_as_system`: the topic is also the system message; otherwise it only decides the split.
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

    @property
    def head(self) -> tuple[Message, ...]:
        """The topic as a system message, unless the record brings its own or keeps the topic out of the conversation."""
        if self.topic and self.topic_as_system and not (self.messages and self.messages[0]["role"] == "system"):
            return ({"role": "system", "content": self.topic},)
        return ()

    @property
    def text(self) -> str:
        """What people said in it, one turn a line."""
        return "\n".join(m["content"] for m in (*self.messages, *self.rejected) if m["role"] != "system")

    def rewritten(self, change: Callable[[str], str]) -> Conversation:
        """The same record with every text passed through `change`."""
        def each(messages: Sequence[Message]) -> tuple[Message, ...]:
            return tuple({"role": m["role"], "content": change(m["content"])} for m in messages)  # type: ignore[misc]

        topic = change(self.topic) if self.topic else self.topic
        return replace(self, messages=each(self.messages), rejected=each(self.rejected), topic=topic)

    def as_json(self) -> dict[str, Any]:
        """Plain values for a quarantine file."""
        return {"id": self.id, "topic": self.topic, "messages": list(self.messages), "rating": self.rating,
                **({"rejected": list(self.rejected)} if self.rejected else {})}


@dataclass(frozen=True)
class Dropped:
    """A record that a step leaves out. One that is a `copy` is not lost: what it says stays in another, or the recipe asks for none like it."""

    id: str
    reason: str
    record: Any = None
    copy: bool = False


@dataclass(frozen=True)
class Sifted:
    """What a step kept, what it dropped and why, and how many records it changed in which way."""

    kept: list[Any]
    dropped: list[Dropped] = field(default_factory=list)
    changed: Mapping[str, int] = field(default_factory=dict)

    def reasons(self) -> dict[str, int]:
        """Dropped records by reason; what follows a colon is detail."""
        return dict(sorted(Counter(d.reason.partition(":")[0] for d in self.dropped).items()))


def counted_once(count: CountTokens) -> CountTokens:
    """`count` that remembers: curation asks for the length of a conversation where it bounds it, builds of it and describes it."""
    known: dict[tuple[tuple[str, str], ...], int] = {}

    def remembered(messages: Sequence[Message]) -> int:
        key = tuple((m["role"], m["content"]) for m in messages)
        if key not in known:
            known[key] = count(messages)
        return known[key]

    return remembered


SHORT = 32
"""Turns of a conversation that is counted whole at once, for it will mostly fit."""


def prefix_within(head: Sequence[Message], messages: Sequence[Message], max_tokens: int | None, count: CountTokens) -> int:
    """How many of `messages` fit after `head` in `max_tokens`; log2 counts, so 5,000 turns cost a dozen."""
    if max_tokens is None or not messages or (len(messages) <= SHORT and count([*head, *messages]) <= max_tokens):
        return len(messages)
    low, high = 0, len(messages)
    step = 16  # gallop first: a long conversation is not rendered whole to learn that 20 turns fit
    while low + step < high and count([*head, *messages[:low + step]]) <= max_tokens:
        low, step = low + step, step * 2
    high = min(high, low + step)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count([*head, *messages[:middle]]) <= max_tokens else (low, middle - 1)
    return low
