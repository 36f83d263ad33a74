"""Transform `language`: language filter with `py3langid` (Lui and Baldwin 2012, langid.py)."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Natural


@piece()
def language(records: Sequence[Conversation], count_tokens: CountTokens, *, keep: Sequence[str] = ("en",),
             min_words: Natural = 8) -> FilterResult:
    """Drop records in other languages. Records under `min_words` are kept as undecided, since detection is unreliable
    there.
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


@functools.lru_cache(maxsize=20_000)
def language_of(text: str, min_words: int = 8) -> str:
    """ISO 639-1 code from the first 600 characters; `und` for too few distinct words."""
    text = text[:600]
    if len(set(text.lower().split())) < min_words:
        return UNDECIDED
    import py3langid

    return str(py3langid.classify(text)[0])
