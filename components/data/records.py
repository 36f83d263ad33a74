"""Raw records on their way to groups: the record, what a transform returns, and helpers both share.

A transform is a piece `(records, count_tokens, *, options) -> Sifted`: it never drops in silence.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from components.data.groups import read_groups
from components.data.layouts import data_files, layout_of, messages_of, read_rows
from components.errors import DataError, RecipeError, nearest
from components.types import Message

CountTokens = Callable[[Sequence[Message]], int]
"""The length of a rendered conversation in tokens of the policy."""


@dataclass(frozen=True)
class Conversation:
    """One raw record. `opening` messages are a prompt given by the data (0: the builder chooses); `rejected` is the
    worse continuation of a preference row, `answer` the reference of a verifiable prompt, `rating` a mean of people's.
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
    """A record that a step leaves out. One that is a `copy` is not lost: what it says stays in another."""

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


def parse(path: Path, parser: str = "auto") -> Sifted:
    """Records of a source: `chitchat` (its JSON), `rows` (any layout of `layouts.py`) or `auto`. Raises `DataError`."""
    from components.data.chitchat import is_chitchat, parse_chitchat

    if parser not in ("auto", "chitchat", "rows", "messages"):
        raise RecipeError(f"data.parser: no parser {parser!r}{nearest(parser, ['auto', 'chitchat', 'rows'])}")
    files = data_files(path)
    if parser == "chitchat" or (parser == "auto" and len(files) == 1 and is_chitchat(files[0])):
        sifted = parse_chitchat(files[0])
    else:
        sifted = parse_rows(path)
    if not sifted.kept:
        raise DataError(f"{path} holds no usable record ({len(sifted.dropped)} dropped: {sifted.reasons()}); "
                        "is it the right file, and the right `data.parser`?")
    ids = Counter(record.id for record in sifted.kept)
    if twice := [i for i, n in ids.items() if n > 1]:
        seen: Counter[str] = Counter()
        kept = []
        for record in sifted.kept:
            seen[record.id] += 1
            kept.append(record if seen[record.id] == 1 else replace(record, id=f"{record.id}~{seen[record.id]}"))
        return Sifted(kept, sifted.dropped, {**sifted.changed, "renamed, their id was taken": len(kept) - len(ids)
                                             if twice else 0})
    return sifted


def parse_rows(path: Path) -> Sifted:
    """Rows in any of the layouts; a row that fits none is dropped with its place in the file."""
    kept: list[Conversation] = []
    dropped: list[Dropped] = []
    for file in data_files(path):
        for number, (where, row) in enumerate(read_rows(file)):
            key = f"{file.stem}-{number}"
            try:
                if not isinstance(row, Mapping):
                    raise ValueError(f"expected an object, got {type(row).__name__}")
                if {"group", "prompt_id", "completion"} <= set(row):
                    kept.extend(_from_groups(file))
                    break
                kept.append(_record(row, str(row.get("id", key))))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                reason = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
                dropped.append(Dropped(key, f"not a record of a known layout: {where}: {reason}", _printable(row)))
    return Sifted(kept, dropped)


def _printable(row: Any) -> Any:
    return json.loads(json.dumps(row, default=str))


TESTS = ("test", "entry_point", "canonical_solution", "test_list")  # what HumanEval and MBPP call what `rewards.unit_tests` reads


def _record(row: Mapping[str, Any], key: str) -> Conversation:
    layout = layout_of(row)
    meta = row.get("meta") or {}
    ratings = {k: float(v) for k, v in (row.get("ratings") or {}).items()}
    rating = row.get("rating", sum(ratings.values()) / len(ratings) if ratings else None)
    shared: dict[str, Any] = {
        "topic": row.get("topic") or None, "rating": None if rating is None else float(rating), "ratings": ratings,
        "answer": None if row.get("answer") is None else str(row["answer"]), "source": str(row.get("source") or ""),
        "meta": {**{name: row[name] for name in TESTS if name in row}, **(json.loads(meta) if isinstance(meta, str) else meta)},
    }
    if layout == "messages":
        return Conversation(key, messages_of(row["messages"], "user"), **shared)
    from components.data.layouts import IMPORTERS

    group = IMPORTERS[layout](row, key)
    prompt = group.prompt.messages
    told = [prompt + path.messages for path in group.trajectories]
    if "margin" in group.columns:
        shared["meta"] = {**shared["meta"], "margin": group.columns["margin"][0]}
    return Conversation(key, told[0] if told else prompt, opening=len(prompt),
                        rejected=told[1] if len(told) > 1 else (), **shared)


def _from_groups(file: Path) -> list[Conversation]:
    found = []
    for group in read_groups(file):
        prompt = group.prompt
        told = [prompt.messages + path.messages for path in group.trajectories]
        if len(told) > 2:
            raise DataError(f"{file}: group {prompt.id!r} has {len(told)} trajectories; curation takes up to two")
        found.append(Conversation(
            prompt.id, told[0] if told else prompt.messages, prompt.meta.get("topic"), opening=len(prompt.messages),
            rejected=told[1] if len(told) > 1 else (), answer=prompt.answer, source=prompt.source, meta=prompt.meta))
    return found
