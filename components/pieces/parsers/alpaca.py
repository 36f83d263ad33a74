"""Parser of Alpaca's instruction format (https://github.com/tatsu-lab/stanford_alpaca)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import message, reply_of, text_of, with_system
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece


@piece(reads=("instruction", "output"), writes=("reply",))
def alpaca(row: Mapping[str, Any]) -> list[Conversation]:
    """`instruction`, `input` (may be empty), `output`; optional `system` and `history` (earlier pairs of
    instruction and output).
    """
    if any(isinstance(pair, str) or len(pair) != 2 for pair in row.get("history") or ()):
        raise ValueError("history: expected pairs of an instruction and its output")
    earlier = [
        message(role, text)
        for pair in row.get("history") or ()
        for role, text in zip(("user", "assistant"), map(text_of, pair), strict=True)
    ]
    question = "\n\n".join(
        text_of(text) for text in (row["instruction"], row.get("input")) if text not in (None, "")
    )
    prompt = with_system((*earlier, message("user", question)), row.get("system"))
    return [Conversation("", (*prompt, *reply_of(row["output"])), opening=len(prompt))]
