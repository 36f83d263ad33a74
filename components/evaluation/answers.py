"""Rates of answers that are truncated, empty, refusals, repetitive or contain personal data."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ratchet.components.data.personal_data import scrubbed
from ratchet.components.errors import DataError
from ratchet.components.evaluation.diversity import words

# typical refusals of instruction-tuned models
REFUSAL = re.compile(
    r"\b(i(?:'|’)?m sorry,? (?:but|i can)|i (?:can(?:'|’)?t|cannot|am unable to|am not able to) "
    r"(?:help|assist|provide|do that|answer|comply)"
    r"|as an? (?:ai|artificial intelligence|language model)|i(?:'|’)?m (?:just |only )?an? (?:ai|language "
    r"model))",
    re.IGNORECASE,
)


def answer_rates(texts: Sequence[str], stops: Sequence[str]) -> dict[str, float]:
    """Shares (0..1) of answers: ended, truncated, failed (by stop reason), empty, refusal_like, repetitive,
    personal_data.

    `repetitive`: at least eight words, of which fewer than half are distinct. `personal_data`: matched by the
    data cleaning rules (`components/data/personal_data.py`). An answer may count in several rates.
    """
    if not texts or len(texts) != len(stops):
        raise DataError(
            f"answer rates need one stop reason per answer, got {len(texts)} answers and {len(stops)} reasons"
        )
    rows = [words(text) for text in texts]
    n = len(texts)
    return {
        "ended": sum(stop == "end" for stop in stops) / n,
        "truncated": sum(stop == "length" for stop in stops) / n,
        "failed": sum(stop == "error" for stop in stops) / n,
        "empty": sum(not row for row in rows) / n,
        "refusal_like": sum(bool(REFUSAL.search(text)) for text in texts) / n,
        "repetitive": sum(len(row) >= 8 and len(set(row)) < len(row) / 2 for row in rows) / n,
        "personal_data": sum(bool(scrubbed(text)[1]) for text in texts) / n,
    }
