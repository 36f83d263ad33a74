"""Duplicates, exact and near; the first one by the order of the source stays."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ratchet.components.data.near import near_earlier, shingles
from ratchet.components.data.records import Conversation, CountTokens, Dropped, Sifted
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share


@piece()
def duplicates(records: Sequence[Conversation], count_tokens: CountTokens) -> Sifted:
    """Drop records that say the same as an earlier one, letter case, punctuation and spaces aside."""
    first: dict[str, str] = {}
    kept: list[Conversation] = []
    dropped: list[Dropped] = []
    for record in records:
        said = re.findall(r"\w+", record.text.lower())
        key = f"{record.topic}\n{' '.join(said) if said else record.text}\n{record.answer}"
        if key in first:
            dropped.append(Dropped(record.id, f"duplicate: of {first[key]}", record.as_json(), copy=True))
        else:
            first[key] = record.id
            kept.append(record)
    return Sifted(kept, dropped)


@piece()
def near(records: Sequence[Conversation], count_tokens: CountTokens, *, threshold: Share = 0.8, size: Count = 3,
         min_words: Natural = 20) -> Sifted:
    """Drop records whose runs of `size` words are `threshold` alike (Jaccard) to an earlier kept one's. Those under
    `min_words` are left alone: two greetings are alike without being copies.
    """
    sets = [shingles(r.text, size) if len(r.text.split()) >= min_words else frozenset() for r in records]
    kept: list[Conversation] = []
    dropped: list[Dropped] = []
    gone: set[int] = set()
    for number, alike in near_earlier(sets, threshold):
        record = records[number]
        if stays := [j for j in alike if j not in gone]:
            gone.add(number)
            dropped.append(Dropped(record.id, f"near duplicate: of {records[stays[0]].id}", record.as_json(), copy=True))
        else:
            kept.append(record)
    return Sifted(kept, dropped)
