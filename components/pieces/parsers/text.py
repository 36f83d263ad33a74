"""Parser of conversations in a single text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import message, transcript
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece


@piece(reads=("text",))
def text(row: Mapping[str, Any], *, prompt: str | None = None) -> list[Conversation]:
    r"""`text` with turn markers: `\n\nHuman:` (HH-RLHF), `### Human:` or `### Instruction:` (Guanaco,
    Alpaca), `<|im_start|>user` (ChatML). Text without markers is the answer to `prompt`.
    """
    turns = transcript(str(row["text"]))
    if turns:
        return [Conversation("", turns)]
    if prompt is None:
        raise ValueError(
            "the text has no turn markers, so its prompt is unknown: set `data.parser: {name: text, "
            "prompt: ...}` "
            "to a prompt for all texts"
        )
    return [Conversation("", (message("user", prompt), message("assistant", str(row["text"]))), opening=1)]
