"""Parser of prompt and response, optionally labelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import label_of, prompt_of, reply_of
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece


@piece(reads=("prompt", "response"), writes=("reply",))
def response(row: Mapping[str, Any]) -> list[Conversation]:
    """`prompt` and `response`, each a text or messages; optional `label` (true or false): desirability for
    KTO.
    """
    prompt = prompt_of(row)
    return [
        Conversation(
            "", (*prompt, *reply_of(row["response"])), opening=len(prompt), label=label_of(row.get("label"))
        )
    ]
