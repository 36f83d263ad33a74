"""Per-group statistics, one flat row each, on which data validation is based.

Leakage checks between splits, ignoring letter case, whitespace and punctuation:
    leaked_prompt                   the whole prompt with its topic
    leaked_topic                    the topic
    near_duplicate_across_splits    prompt and answer without the topic: from 20 words on at Jaccard
                                    similarity 0.8 of word trigrams, below that if equal. Texts under 4 words
                                    ("Hey! Hello?") are greetings and ignored
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ratchet.components.data.building import prompt_digest
from ratchet.components.data.language_id import language_of
from ratchet.components.data.near import near_earlier, shingles
from ratchet.components.data.personal_data import scrubbed
from ratchet.components.data.records import CountTokens
from ratchet.components.data.words import words_of
from ratchet.components.recipes.splits import PROMPT_SECTIONS, kind_of
from ratchet.components.types import Group, Message

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("split", pa.string()),
        ("kind", pa.string()),
        ("group", pa.int32()),
        ("prompt_id", pa.string()),
        ("topic", pa.string()),
        ("trajectories", pa.int32()),
        ("turns", pa.int32()),
        ("trainable_turns", pa.int32()),
        ("tokens", pa.int32()),
        ("characters", pa.int32()),
        ("within_token_bound", pa.bool_()),
        ("roles_alternate", pa.bool_()),
        ("last_is_assistant", pa.bool_()),
        ("prompt_ends_well", pa.bool_()),
        ("no_empty_turn", pa.bool_()),
        ("chosen_ne_rejected", pa.bool_()),
        ("rating", pa.float64()),
        ("rating_rejected", pa.float64()),
        ("rating_gap", pa.float64()),
        ("language", pa.string()),
        ("has_personal_data", pa.bool_()),
        ("duplicate", pa.bool_()),
        ("leaked_prompt", pa.bool_()),
        ("leaked_topic", pa.bool_()),
        ("near_duplicate_across_splits", pa.bool_()),
    ]
)

GREETING = 4
"""Minimum words of a text for leakage checks; shorter ones coincide by chance. In chitchat-dataset the
longest such coincidence has 3.
"""


def statistics(
    splits: Mapping[str, Sequence[Group]],
    count_tokens: CountTokens,
    bounds: Mapping[str, int | None],
    homes: Mapping[str, str] | None = None,
    *,
    near_threshold: float = 0.8,
    min_words: int = 20,
    region: str = "US",
) -> pa.Table:
    """The statistics table. `bounds`: maximum tokens of a split's groups. A leak is attributed to the later
    split.
    `homes`: published splits behind the splits; topics may recur between different published splits.
    `region`: default country of phone numbers, as in the transform `scrub`.
    """
    rows: list[dict[str, Any]] = []
    prompts: dict[str, str] = {}
    topics: dict[str, str] = {}
    known: dict[str, set[str]] = {}
    groups = [
        (split, number, group) for split, members in splits.items() for number, group in enumerate(members)
    ]
    for split, number, group in groups:
        row = _row(split, number, group, count_tokens, bounds.get(split), region)
        prompt, topic = prompt_digest(group.prompt.messages), row["topic"]
        prompt_text = "\n".join(f"{m['role']} {normalised(m['content'])}" for m in group.prompt.messages)
        row["leaked_prompt"] = prompts.setdefault(prompt_text, split) != split
        row["leaked_topic"] = (
            bool(topic) and topics.setdefault(f"{(homes or {}).get(split, '')} {topic}", split) != split
        )
        whole = prompt + "".join(prompt_digest(path.messages) for path in group.trajectories)
        row["duplicate"] = whole in known.setdefault(split, set())
        known[split].add(whole)
        rows.append(row)
    across = _near_across(groups, near_threshold, min_words)
    for number, row in enumerate(rows):
        row["near_duplicate_across_splits"] = number in across
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _row(
    split: str, number: int, group: Group, count: CountTokens, bound: int | None, region: str
) -> dict[str, Any]:
    prompt, paths = group.prompt.messages, [path.messages for path in group.trajectories]
    text = "\n".join(
        m["content"] for m in (*prompt, *(m for messages in paths for m in messages)) if m["role"] != "system"
    )
    ratings = group.columns.get("rating") or [group.prompt.meta.get("rating")]
    margin = group.columns.get("margin")
    gap = margin[0] if margin else None
    return {
        "id": f"{split}/{number}",
        "split": split,
        "kind": kind_of(split),
        "group": number,
        "prompt_id": group.prompt.id,
        "topic": group.prompt.meta.get("topic"),
        "trajectories": len(paths),
        "turns": len(prompt) + max(map(len, paths), default=0),
        "trainable_turns": sum(m["role"] == "assistant" for messages in paths for m in messages),
        "characters": len(text),
        **soundness(split, group, count, bound),
        "rating": ratings[0],
        "rating_rejected": ratings[1] if len(ratings) == 2 else None,
        "rating_gap": gap,
        "language": language_of(text),
        "has_personal_data": bool(scrubbed(text, region)[1]),
    }


def soundness(split: str, group: Group, count: CountTokens, bound: int | None) -> dict[str, Any]:
    """Validity checks of a group, by column. Its length in tokens is that of its longest trajectory with
    prompt, or of the prompt for prompt splits.
    """
    prompt, paths = group.prompt.messages, [path.messages for path in group.trajectories]
    whole = [(*prompt, *messages) for messages in paths] or [prompt]
    length = max(
        count(messages) for messages in (whole if kind_of(split) not in PROMPT_SECTIONS else [prompt])
    )
    return {
        "tokens": length,
        "within_token_bound": bound is None or length <= bound,
        "roles_alternate": all(map(alternates, whole)),
        "last_is_assistant": all(
            bool(messages) and messages[-1]["role"] == "assistant" for messages in paths
        ),
        "prompt_ends_well": bool(prompt) and prompt[-1]["role"] != "assistant",
        "no_empty_turn": all(m["content"].strip() for messages in whole for m in messages),
        "chosen_ne_rejected": len(paths) != 2 or paths[0] != paths[1],
    }


def normalised(text: str) -> str:
    """The text in lower case without punctuation and extra whitespace."""
    return " ".join(re.sub(r"[.,;:!?'\"]", " ", text.lower()).split()) or text


def alternates(messages: Sequence[Message]) -> bool:
    """Whether messages are an optional system message followed by alternating user and assistant turns, user
    first. Tool results belong to the assistant turn that made the call.
    """
    spoken = [
        m["role"]
        for i, m in enumerate(messages)
        if m["role"] != "tool" and not (i and m["role"] == "assistant" and messages[i - 1]["role"] == "tool")
    ]
    spoken = spoken[1:] if spoken[:1] == ["system"] else spoken
    return all(role == ("user", "assistant")[i % 2] for i, role in enumerate(spoken))


def _near_across(groups: Sequence[tuple[str, int, Group]], threshold: float, min_words: int) -> set[int]:
    """Indices of groups with a text that is a near duplicate of one in an earlier split (equal, if under
    `min_words`). Bare prompts are not compared.
    """
    seen: dict[str, int] = {}
    texts: list[tuple[int, str]] = []
    for number, (split, _, group) in enumerate(groups):
        for path in group.trajectories:
            text = "\n".join(
                m["content"] for m in (*group.prompt.messages, *path.messages) if m["role"] != "system"
            )
            if (
                len(words_of(normalised(text))) >= GREETING
                and seen.setdefault(f"{split}\n{text}", number) == number
            ):
                texts.append((number, text))
    found: set[int] = set()
    guilty: set[str] = set()
    whole = (
        shingles(text) if len(words_of(text)) >= min_words else frozenset([normalised(text)])
        for _, text in texts
    )
    for place, alike in near_earlier(list(whole), threshold):
        number, text = texts[place]
        if any(groups[texts[j][0]][0] != groups[number][0] for j in alike):
            guilty.add(f"{groups[number][0]}\n{text}")
            found.add(number)
    if guilty:
        for number, (split, _, group) in enumerate(groups):
            for path in group.trajectories:
                text = "\n".join(
                    m["content"] for m in (*group.prompt.messages, *path.messages) if m["role"] != "system"
                )
                if f"{split}\n{text}" in guilty:
                    found.add(number)
    return found
