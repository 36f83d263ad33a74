"""Train/evaluation splits by topic: no topic is in two splits, and no first prompt of records without topic.

Topics are ordered by a hash of seed and topic, and each is assigned to the split furthest below its share of
records. Topics with similar words (`topic_threshold`) stay together. A record without a topic is split by the
words of its prompt or first user turn.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ratchet.components.data.near import near_earlier, shingles
from ratchet.components.data.records import Conversation, Rejected
from ratchet.components.data.words import words_of
from ratchet.components.errors import DataError


def split_key(record: Conversation) -> str:
    """Key that must not occur in two splits: topic, or first prompt."""
    if record.topic:
        return "topic " + " ".join(re.findall(r"\w+", record.topic.lower()))
    if record.opening:
        text = " ".join(m["content"] for m in record.messages[: record.opening] if m["role"] != "system")
    else:
        text = next((m["content"] for m in record.messages if m["role"] == "user"), "")
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return "opening " + " ".join(words)


def split(
    records: Sequence[Conversation], shares: Mapping[str, float], seed: int, *, topic_threshold: float = 0.8
) -> dict[str, list[Conversation]]:
    """Records by split, in the order of `shares`."""
    if not records:
        raise DataError("no records to split; see the quarantine file for reasons")
    together = _alike(sorted({split_key(r) for r in records}), topic_threshold)
    sizes = Counter(together[split_key(r)] for r in records)
    total = sum(shares.values())
    quota = {name: share / total * len(records) for name, share in shares.items()}
    filled: Counter[str] = Counter()
    home: dict[str, str] = {}
    for key in sorted(sizes, key=lambda key: hashlib.sha256(f"{seed} {key}".encode()).digest()):
        empty = [name for name in shares if not filled[name]] if len(sizes) - len(home) <= len(shares) else []
        name = max(empty or shares, key=lambda name: (quota[name] - filled[name]) / quota[name])
        home[key] = name
        filled[name] += sizes[key]
    parts: dict[str, list[Conversation]] = {name: [] for name in shares}
    for record in records:
        parts[home[together[split_key(record)]]].append(record)
    return parts


def _alike(keys: Sequence[str], threshold: float) -> dict[str, str]:
    """Topic -> representative of its cluster of similar topics; first prompts are not clustered."""
    first = {key: key for key in keys}
    topics = [key for key in keys if key.startswith("topic ")]
    for number, alike in near_earlier([shingles(t.removeprefix("topic "), 1) for t in topics], threshold):
        for j in alike:
            one, other = sorted((first[topics[number]], first[topics[j]]))
            first.update({key: one for key, home in first.items() if home == other})
    return first


def drop_near_duplicates(
    parts: Mapping[str, Sequence[Conversation]], threshold: float, *, min_words: int = 20
) -> tuple[dict[str, list[Conversation]], list[Rejected]]:
    """The splits without records that are near duplicates of a record in an earlier split, and those
    records.
    """
    flat = [(name, record) for name, records in parts.items() for record in records]
    sets = [
        shingles(r.text) if len(words_of(r.text)) >= min_words and _answers(r) else frozenset()
        for _, r in flat
    ]
    kept: dict[str, list[Conversation]] = defaultdict(list, {name: [] for name in parts})
    dropped: list[Rejected] = []
    gone: set[int] = set()
    for number, alike in near_earlier(sets, threshold):
        name, record = flat[number]
        across = [j for j in alike if j not in gone and flat[j][0] != name]
        if across:
            other, twin = flat[across[0]]
            gone.add(number)
            dropped.append(
                Rejected(
                    record.id,
                    "near duplicate across splits",
                    record.as_json(),
                    copy=True,
                    detail=f"of {twin.id} in {other}",
                )
            )
        else:
            kept[name].append(record)
    return dict(kept), dropped


def _answers(record: Conversation) -> bool:
    """False for records without an assistant turn: generated problems share their wording by design."""
    return any(m["role"] == "assistant" for m in record.messages)
