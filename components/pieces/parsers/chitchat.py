"""The JSON of `chitchat-dataset`: {id: {messages: [[{text, timestamp, sender}]], prompt, ratings, start}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.data.messages import message
from ratchet.components.data.records import Conversation
from ratchet.components.piece import piece


@piece(reads=("messages", "prompt", "ratings", "start"), writes=("reply", "rating"))
def chitchat(row: Mapping[str, Any]) -> list[Conversation]:
    """Conversations of two people: consecutive messages of one are joined, the first to speak is the user, the second the assistant;
    `prompt` is their topic, `ratings` are theirs.
    """
    turns: list[tuple[str, list[str]]] = []
    for said in (one for block in row["messages"] for one in block):
        text = said["text"].strip()
        if not text:
            continue
        if turns and turns[-1][0] == said["sender"]:
            turns[-1][1].append(text)
        else:
            turns.append((said["sender"], [text]))
    speakers = list(dict.fromkeys(speaker for speaker, _ in turns))
    if len(speakers) != 2:
        raise ValueError(f"has {len(speakers)} speakers, not two" if speakers else "nobody says anything")
    roles = dict(zip(speakers, ("user", "assistant"), strict=True))
    ratings = {name: float(value) for name, value in sorted((row.get("ratings") or {}).items())}
    return [Conversation("", tuple(message(roles[speaker], " ".join(texts)) for speaker, texts in turns),
                         (row.get("prompt") or "").strip() or None, sum(ratings.values()) / len(ratings) if ratings else None, ratings,
                         source="chitchat")]
