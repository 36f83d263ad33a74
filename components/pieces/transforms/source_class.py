"""Transform `source_class`: names the quality class of a record's answers in its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ratchet.components.data.conditioning import conditioned, without_condition
from ratchet.components.data.records import Conversation, CountTokens, FilterResult
from ratchet.components.piece import piece

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
        expert = bool(record.label) if always is None else always == "expert"
        kept.append(conditioned(without_condition(record, {*NAMES.values()}), NAMES[expert]))
    return FilterResult(kept)
