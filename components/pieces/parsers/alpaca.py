"""Parser of Alpaca's instruction format (https://github.com/tatsu-lab/stanford_alpaca)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import instruction_of, reply_of
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece


@piece(reads=("instruction", "output"), writes=("reply",))
def alpaca(row: Mapping[str, Any]) -> list[Conversation]:
    """`instruction`, `input` (may be empty), `output`; optional `system` and `history` (earlier pairs of
    instruction and output).
    """
    prompt = instruction_of(row)
    return [Conversation("", (*prompt, *reply_of(row["output"])), opening=len(prompt))]
