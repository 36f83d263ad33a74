"""Parser of ShareGPT's chat format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import messages_of, with_system
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece


@piece(reads=("conversations",), writes=("reply",))
def sharegpt(row: Mapping[str, Any]) -> list[Conversation]:
    """`conversations`: objects with `from` (human, gpt, system, function_call, observation, ...) and `value`;
    optional `system`, `tools`.
    """
    return [
        Conversation(
            "", with_system(messages_of(row["conversations"], "user"), row.get("system"), row.get("tools"))
        )
    ]
