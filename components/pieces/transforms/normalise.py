"""Transform `normalise`: Unicode and whitespace normalisation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from ratchet.components.data.records import Conversation, CountTokens, FilterResult
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Bool

QUOTES = str.maketrans(
    {
        "‘": "'",
        "’": "'",
        "‚": "'",
        "“": '"',
        "”": '"',
        "„": '"',
        "…": "...",
        "–": "-",
        "—": "-",
        "\u00a0": " ",
        "\u200b": "",
        "\ufeff": "",
        "\u2028": "\n",
        "\u2029": "\n",
    }
)


@piece()
def normalise(
    records: Sequence[Conversation], count_tokens: CountTokens, *, quotes: Bool = True
) -> FilterResult:
    """NFC, straight quotes (unless `quotes` is false), no control characters, single spaces, at most one
    blank line; also in reference answers, which replies are compared with, if these are a line of text: code
    and JSON are kept.
    """
    kept = []
    for record in records:
        made = record.rewritten(lambda text: tidy(text, quotes))
        if record.answer is not None and not re.search(r"\n|^\s*[\[{]", record.answer):
            made = replace(made, answer=tidy(record.answer, quotes))
        kept.append(made)
    return FilterResult(kept, [], {"text tidied": sum(a != b for a, b in zip(records, kept, strict=True))})


def tidy(text: str, quotes: bool = True) -> str:
    """Normalise one text; idempotent."""
    if quotes and not text.isascii():
        text = text.translate(QUOTES)
    if text.isascii() and text.isprintable():
        return re.sub(r"  +", " ", text).strip()
    text = "".join(
        c
        for c in text
        if c in "\n\t"
        or (c.isascii() and c.isprintable())
        or (not c.isascii() and unicodedata.category(c) not in ("Cc", "Cs", "Co", "Cn"))
    )
    text = unicodedata.normalize("NFC", text)  # what was removed may have stood before a combining character
    text = re.sub(r"[^\S\n]+", " ", text)
    return re.sub(r" ?\n ?", "\n", re.sub(r"\s*\n\s*\n\s*", "\n\n", text)).strip()
