"""Transform `language`: language filter."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.data.language_id import UNDECIDED, language_of
from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Natural


@piece()
def language(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    *,
    keep: Sequence[str] = ("en",),
    min_words: Natural = 8,
) -> FilterResult:
    """Drop records in other languages. Records under `min_words` are kept as undecided, since detection is
    unreliable there.
    """
    kept: list[Conversation] = []
    dropped: list[Rejected] = []
    undecided = 0
    for record in records:
        found = language_of(record.text, min_words)
        undecided += found == UNDECIDED
        if found in keep or found == UNDECIDED:
            kept.append(record)
        else:
            dropped.append(Rejected(record.id, f"language {found}", record.as_json()))
    return FilterResult(kept, dropped, {"language undecided": undecided})
