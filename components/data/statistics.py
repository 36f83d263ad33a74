"""One flat row a group, for checks and for people: what a validation suite judges is computed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from components.data.builders import prompt_digest
from components.data.language import language_of
from components.data.near import near_earlier, shingles
from components.data.records import CountTokens
from components.data.scrub import scrubbed
from components.types import Group, Message

SCHEMA = pa.schema([
    ("id", pa.string()), ("split", pa.string()), ("kind", pa.string()), ("group", pa.int32()), ("prompt_id", pa.string()),
    ("topic", pa.string()), ("trajectories", pa.int32()), ("turns", pa.int32()), ("trainable_turns", pa.int32()),
    ("tokens", pa.int32()), ("characters", pa.int32()), ("within_token_bound", pa.bool_()), ("roles_alternate", pa.bool_()),
    ("last_is_assistant", pa.bool_()), ("prompt_ends_well", pa.bool_()), ("no_empty_turn", pa.bool_()),
    ("chosen_ne_rejected", pa.bool_()), ("rating", pa.float64()), ("rating_gap", pa.float64()), ("language", pa.string()),
    ("has_personal_data", pa.bool_()), ("duplicate", pa.bool_()), ("leaked_prompt", pa.bool_()),
    ("leaked_topic", pa.bool_()), ("near_duplicate_across_splits", pa.bool_()),
])


def kind_of(split: str) -> str:
    """`reward_validation` -> `reward`: which builder made it."""
    return split.removesuffix("_validation")


def statistics(
    splits: Mapping[str, Sequence[Group]], count_tokens: CountTokens, bounds: Mapping[str, int | None], *,
    near_threshold: float = 0.8, min_words: int = 20,
) -> pa.Table:
    """The table. `bounds` gives the most tokens a split's groups may have. A leak is charged to the later split."""
    rows: list[dict[str, Any]] = []
    prompts: dict[str, str] = {}
    topics: dict[str, str] = {}
    said: dict[str, set[str]] = {}
    groups = [(split, number, group) for split, members in splits.items() for number, group in enumerate(members)]
    for split, number, group in groups:
        row = _row(split, number, group, count_tokens, bounds.get(split))
        prompt, topic = prompt_digest(group.prompt.messages), row["topic"]
        row["leaked_prompt"] = prompts.setdefault(prompt, split) != split
        row["leaked_topic"] = bool(topic) and topics.setdefault(topic, split) != split
        whole = prompt + "".join(prompt_digest(path.messages) for path in group.trajectories)
        row["duplicate"] = whole in said.setdefault(split, set())
        said[split].add(whole)
        rows.append(row)
    across = _near_across(groups, near_threshold, min_words)
    for number, row in enumerate(rows):
        row["near_duplicate_across_splits"] = number in across
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _row(split: str, number: int, group: Group, count: CountTokens, bound: int | None) -> dict[str, Any]:
    prompt, paths = group.prompt.messages, [path.messages for path in group.trajectories]
    whole = [(*prompt, *messages) for messages in paths] or [prompt]
    text = "\n".join(m["content"] for m in (*prompt, *(m for messages in paths for m in messages)) if m["role"] != "system")
    length = max(count(messages) for messages in (whole if kind_of(split) not in ("prompts", "evaluate") else [prompt]))
    ratings = group.columns.get("rating") or [group.prompt.meta.get("rating")]
    margin = group.columns.get("margin")
    gap = margin[0] if margin else None
    return {
        "id": f"{split}/{number}", "split": split, "kind": kind_of(split), "group": number, "prompt_id": group.prompt.id,
        "topic": group.prompt.meta.get("topic"), "trajectories": len(paths), "turns": max(map(len, whole)),
        "trainable_turns": sum(m["role"] == "assistant" for messages in paths for m in messages),
        "tokens": length, "characters": len(text), "within_token_bound": bound is None or length <= bound,
        "roles_alternate": all(map(alternates, whole)),
        "last_is_assistant": all(bool(messages) and messages[-1]["role"] == "assistant" for messages in paths),
        "prompt_ends_well": bool(prompt) and prompt[-1]["role"] != "assistant",
        "no_empty_turn": all(m["content"].strip() for messages in whole for m in messages),
        "chosen_ne_rejected": len(paths) != 2 or paths[0] != paths[1],
        "rating": ratings[0], "rating_gap": gap, "language": language_of(text),
        "has_personal_data": bool(scrubbed(text)[1]),
    }


def alternates(messages: Sequence[Message]) -> bool:
    """Optional system message, then user and assistant in turn (tool turns aside), user first."""
    spoken = [m["role"] for m in messages if m["role"] != "tool"]
    spoken = spoken[1:] if spoken[:1] == ["system"] else spoken
    return all(role == ("user", "assistant")[i % 2] for i, role in enumerate(spoken))


def _near_across(groups: Sequence[tuple[str, int, Group]], threshold: float, min_words: int) -> set[int]:
    """Numbers of groups with a text nearly the same as one in an earlier split; bare prompts are not compared."""
    seen: dict[str, int] = {}
    texts: list[tuple[int, str]] = []
    for number, (split, _, group) in enumerate(groups):
        for path in group.trajectories:
            text = "\n".join(m["content"] for m in (*group.prompt.messages, *path.messages) if m["role"] != "system")
            if len(text.split()) >= min_words and seen.setdefault(f"{split}\n{text}", number) == number:
                texts.append((number, text))
    found: set[int] = set()
    guilty: set[str] = set()
    for place, alike in near_earlier([shingles(text) for _, text in texts], threshold):
        number, text = texts[place]
        if any(groups[texts[j][0]][0] != groups[number][0] for j in alike):
            guilty.add(f"{groups[number][0]}\n{text}")
            found.add(number)
    if guilty:
        for number, (split, _, group) in enumerate(groups):
            for path in group.trajectories:
                text = "\n".join(m["content"] for m in (*group.prompt.messages, *path.messages) if m["role"] != "system")
                if f"{split}\n{text}" in guilty:
                    found.add(number)
    return found
