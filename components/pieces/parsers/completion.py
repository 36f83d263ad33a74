"""Parser of prompt and completion, optionally labelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import answer_of, label_of, prompt_of, reply_of
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece


@piece(reads=("prompt", "completion"), writes=("reply",))
def completion(row: Mapping[str, Any]) -> list[Conversation]:
    """`prompt` and `completion`, each a text or messages; optional `label` (true or false): desirability for
    KTO; optional `answer`, the reference for a verifier.
    """
    prompt = prompt_of(row)
    return [
        Conversation(
            "",
            (*prompt, *reply_of(row["completion"])),
            opening=len(prompt),
            label=label_of(row.get("label")),
            answer=answer_of(row.get("answer")),
        )
    ]
