"""Language bound: what a record is written in."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.data.language_id import UNDECIDED, language_of
from ratchet.components.data.records import Conversation, CountTokens, Dropped, Sifted
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Natural


@piece()
def language(records: Sequence[Conversation], count_tokens: CountTokens, *, keep: Sequence[str] = ("en",),
             min_words: Natural = 8) -> Sifted:
    """Drop records in another language. Under `min_words` no guess is worth anything: they stay, as undecided."""
    kept: list[Conversation] = []
    dropped: list[Dropped] = []
    undecided = 0
    for record in records:
        found = language_of(record.text, min_words)
        undecided += found == UNDECIDED
        if found in keep or found == UNDECIDED:
            kept.append(record)
        else:
            dropped.append(Dropped(record.id, f"language {found}", record.as_json()))
    return Sifted(kept, dropped, {"language undecided": undecided})
