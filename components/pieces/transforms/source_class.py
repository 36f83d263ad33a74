"""Transform `source_class`: names the quality class of a record's answers in its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ratchet.components.data.records import Conversation, CountTokens, FilterResult
from ratchet.components.piece import piece
from ratchet.components.types import Message

NAMES = {True: "Expert.", False: "Other."}


@piece(paper="arXiv:2309.11235")
def source_class(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    *,
    always: Literal["expert", "other"] | None = None,
) -> FilterResult:
    """A system message with the class of the record's answer, expert (label true) or other, as the condition
    of class-conditioned fine-tuning (C-RLFT); with `always`, that class whatever the label, which
    inference uses. An earlier class is replaced.
    """
    kept = []
    for record in records:
        first = record.messages[0] if record.messages else None
        had = first is not None and first["role"] == "system" and first["content"] in NAMES.values()
        expert = bool(record.label) if always is None else always == "expert"
        system: Message = {"role": "system", "content": NAMES[expert]}
        kept.append(
            replace(
                record,
                messages=(system, *record.messages[had:]),
                opening=record.opening + (not had) if record.opening else 0,
            )
        )
    return FilterResult(kept)
