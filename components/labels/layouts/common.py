"""Names of fields in foreign layouts, and helpers of all layouts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.labels.labels import ROLES, Item, Label
from ratchet.components.types import Message

Decoded = tuple[list[Item], list[Label]]
PROMPTS = ("messages", "prompt", "instruction", "question", "chat", "conversation")
ANSWER = re.compile(
    r"(?:answer|response|completion|generation|text|output)[-_ ]?(?:\d+|[a-z])", re.IGNORECASE
)


@dataclass(frozen=True)
class Names:
    """Names of the prompt's field, the answers' fields and the question; the defaults find usual names."""

    prompt: str | None = None
    answers: Sequence[str] = ()
    question: str | None = None


def conversation(value: Any, where: str) -> list[Message]:
    """Messages of a prompt: a text is one user message, a list has role and content. `DataError` else."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not all(
        isinstance(one, Mapping) and one.get("role") in ROLES and isinstance(one.get("content"), str)
        for one in value
    ):
        raise DataError(
            f"{where}: expected the prompt as a text or as messages with role and content, got "
            f"{str(value)[:120]}"
        )
    return [{"role": one["role"], "content": one["content"]} for one in value]


def fields_of(content: Mapping[str, Any], names: Names, where: str) -> tuple[list[Message], list[str]]:
    """Prompt and names of the answers' fields. `DataError` with all names if they are not found."""
    known = ", ".join(map(repr, content))
    prompt = names.prompt or next((name for name in PROMPTS if content.get(name) is not None), None)
    if prompt is None or content.get(prompt) is None:
        raise DataError(
            f"{where}: no field {prompt or ' or '.join(PROMPTS)!r} with the prompt; there are {known}. "
            "Name it"
        )
    answers = list(names.answers) or [name for name in content if ANSWER.fullmatch(name)]
    wrong = [name for name in answers if not isinstance(content.get(name), str)]
    if wrong or len(answers) < 2:
        raise DataError(
            f"{where}: expected two or more fields with answers as texts, such as 'answer1' and 'answer2'; "
            f"got {known}. Name them"
        )
    return conversation(content[prompt], where), answers


def pseudonym(identity: Any) -> str:
    """A pseudonym for an imported annotator: a number or UUID is one, an address or a name is hashed."""
    text = str(identity)
    if re.fullmatch(r"\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
        return f"annotator-{text}" if text.isdigit() else text
    return f"annotator-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def records(content: Any, where: str, keys: Sequence[str], layout: str, hint: str) -> list[Mapping[str, Any]]:
    """The content as a list of objects that have the layout's keys. `DataError` for anything else."""
    if not isinstance(content, list) or not all(isinstance(one, Mapping) for one in content):
        raise DataError(f"{where}: expected {layout}, a JSON list of objects, got {type(content).__name__}")
    for number, one in enumerate(content):
        if missing := [key for key in keys if not isinstance(one.get(key), (Mapping, list))]:
            raise DataError(
                f"{where}, record {number}: not {layout}: no {', '.join(map(repr, missing))}; there are "
                f"{', '.join(map(repr, one))}. {hint}"
            )
    return content
