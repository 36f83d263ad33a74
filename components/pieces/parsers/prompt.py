"""Parser of prompts with reference answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import answer_of, message, prompt_of
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Bool


@piece(reads=("prompt",))
def prompt(row: Mapping[str, Any], *, marker: str = "####", annotations: Bool = False) -> list[Conversation]:
    """`prompt` (a text or messages) and optional `answer`, the reference for a verifier. Text before `marker`
    in `answer` is a worked solution (GSM8K): it becomes the reply (with calculator annotations `<<48/2=24>>`
    only if `annotations`), the rest the reference answer.
    """
    return prompt_with_answer(row, marker, annotations)


def prompt_with_answer(row: Mapping[str, Any], marker: str, annotations: bool) -> list[Conversation]:
    messages = prompt_of(row)
    answer = answer_of(row.get("answer"))
    if answer is None or (marker not in answer and "\\boxed{" not in answer):
        return [Conversation("", messages, opening=len(messages), answer=answer)]
    solution = answer if annotations else re.sub(r"<<[^<>]*>>", "", answer)
    final = answer.rpartition(marker)[2].strip() if marker in answer else answer
    return [
        Conversation("", (*messages, message("assistant", solution)), opening=len(messages), answer=final)
    ]
