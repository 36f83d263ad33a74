"""What stands for the tokenizer of a model without tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.components.errors import ContractError
from ratchet.components.types import Message


class NoTokenizer:
    """Stands for the tokenizer of a model without tokens. `ContractError` for anything that needs one."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def count(self, messages: Sequence[Message]) -> int:
        """Length of messages in words, for the limits on the lengths of records."""
        return sum(len(message["content"].split()) for message in messages)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ContractError(
            f"{self._path}: a model of the family {self._name!r} has no tokenizer, and its {name!r} was "
            "asked for: it acts on observations, and does not read or write text. Use a rollout of arrays, "
            "such as `control`, and groups that such a rollout made"
        )
