"""Parser of questions with reference answers (GSM8K)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import PROMPTS
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece
from ratchet.components.pieces.parsers.prompt import prompt_with_answer
from ratchet.components.recipes.ranges import Bool


@piece(reads=("question",), paper="arXiv:2110.14168")
def question(
    row: Mapping[str, Any], *, marker: str = "####", annotations: Bool = False
) -> list[Conversation]:
    """`question` and `answer`, as `prompt` and `answer` of the parser `prompt`, whatever other columns there
    are: GSM8K as published.
    """
    own = {name: value for name, value in row.items() if name == "question" or name not in PROMPTS}
    return prompt_with_answer(own, marker, annotations)
