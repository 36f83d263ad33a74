"""Removal of exact and near duplicates; the first record in source order is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ratchet.components.data.near import near_earlier, shingles
from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected
from ratchet.components.data.words import words_of
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share


@piece()
def duplicates(records: Sequence[Conversation], count_tokens: CountTokens) -> FilterResult:
    """Drop records with the same text as an earlier one, ignoring letter case, punctuation and whitespace.
    The same text after another system message is no duplicate, nor is what two annotators chose (`annotator`
    in a record's `meta`).
    """
    first: dict[str, str] = {}
    kept: list[Conversation] = []
    dropped: list[Rejected] = []
    for record in records:
        words = re.findall(r"\w+", record.text.lower())
        text = " ".join(words) if words else record.text
        key = f"{record.topic}\n{text}\n{record.answer}\n{system(record)}"
        key += f"\n{record.meta['annotator']}" if "annotator" in record.meta else ""
        if key in first:
            dropped.append(
                Rejected(record.id, "duplicate", record.as_json(), copy=True, detail=f"of {first[key]}")
            )
        else:
            first[key] = record.id
            kept.append(record)
    return FilterResult(kept, dropped)


@piece()
def near(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    *,
    threshold: Share = 0.8,
    size: Count = 3,
    min_words: Natural = 20,
) -> FilterResult:
    """Drop records whose word shingles of length `size` have Jaccard similarity of at least `threshold` with
    an earlier kept record with the same system message. Records under `min_words` are kept: short greetings
    are alike without being copies.
    """
    sets = [shingles(r.text, size) if len(words_of(r.text)) >= min_words else frozenset() for r in records]
    kept: list[Conversation] = []
    dropped: list[Rejected] = []
    gone: set[int] = set()
    for number, alike in near_earlier(sets, threshold):
        record = records[number]
        if stays := [j for j in alike if j not in gone and system(records[j]) == system(record)]:
            gone.add(number)
            dropped.append(
                Rejected(
                    record.id,
                    "near duplicate",
                    record.as_json(),
                    copy=True,
                    detail=f"of {records[stays[0]].id}",
                )
            )
        else:
            kept.append(record)
    return FilterResult(kept, dropped)


def system(record: Conversation) -> str:
    """Its system messages, one per line."""
    return "\n".join(m["content"] for m in record.messages if m["role"] == "system")
