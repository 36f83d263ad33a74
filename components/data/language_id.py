"""Language identification by `py3langid` (Lui and Baldwin 2012, langid.py)."""

from __future__ import annotations

import functools

from ratchet.components.data.words import words_of

UNDECIDED = "und"


@functools.lru_cache(maxsize=20_000)
def language_of(text: str, min_words: int = 8) -> str:
    """ISO 639-1 code from the first 600 characters; `und` for too few distinct words."""
    text = text[:600]
    if len(set(words_of(text.lower()))) < min_words:
        return UNDECIDED
    import py3langid

    return str(py3langid.classify(text)[0])
