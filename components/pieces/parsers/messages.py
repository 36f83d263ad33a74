"""Parser of OpenAI's chat format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import messages_of, with_system
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece


@piece(reads=("messages",), writes=("reply",))
def messages(row: Mapping[str, Any]) -> list[Conversation]:
    """`messages`: objects with `role` (system, developer, user, assistant, tool), `content` (text or text
    parts) and `tool_calls`; optional `tools` (function definitions) and `system` text.
    """
    turns = with_system(
        messages_of(row["messages"], "user"), row.get("system"), row.get("tools") or row.get("functions")
    )
    return [Conversation("", turns)]
