"""Language bound: what a record is written in, by `py3langid` (Lui and Baldwin 2012, langid.py)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ratchet.components.data.records import Conversation, CountTokens, Dropped, Sifted
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Natural

UNDECIDED = "und"


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


@functools.lru_cache(maxsize=20_000)
def language_of(text: str, min_words: int = 8) -> str:
    """ISO 639-1 code, judged on the first 600 characters; `und` for too few different words."""
    text = text[:600]
    if len(set(text.lower().split())) < min_words:
        return UNDECIDED
    import py3langid

    return str(py3langid.classify(text)[0])
