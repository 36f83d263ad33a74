"""Parser of `chitchat-dataset` JSON: {id: {messages: [[{text, timestamp, sender}]], prompt, ratings,
start}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import message
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece


@piece(reads=("messages", "prompt", "ratings", "start"), writes=("reply", "rating"))
def chitchat(row: Mapping[str, Any]) -> list[Conversation]:
    """Two-person conversations: consecutive messages of one speaker are merged, the first speaker is the
    user, the second the assistant; `prompt` is the topic, `ratings` are the speakers' ratings.
    """
    turns: list[tuple[str, list[str]]] = []
    for entry in (one for block in row["messages"] for one in block):
        text = entry["text"].strip()
        if not text:
            continue
        if turns and turns[-1][0] == entry["sender"]:
            turns[-1][1].append(text)
        else:
            turns.append((entry["sender"], [text]))
    speakers = list(dict.fromkeys(speaker for speaker, _ in turns))
    if len(speakers) != 2:
        raise ValueError(
            f"has {len(speakers)} speaker{'s' * (len(speakers) > 1)}, not two"
            if speakers
            else "has no messages"
        )
    roles = dict(zip(speakers, ("user", "assistant"), strict=True))
    ratings = {name: float(value) for name, value in sorted((row.get("ratings") or {}).items())}
    return [
        Conversation(
            "",
            tuple(message(roles[speaker], " ".join(texts)) for speaker, texts in turns),
            (row.get("prompt") or "").strip() or None,
            sum(ratings.values()) / len(ratings) if ratings else None,
            ratings,
            source="chitchat",
        )
    ]
