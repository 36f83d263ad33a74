"""The JSON of `chitchat-dataset`: {id: {messages: [[{text, timestamp, sender}]], prompt?, ratings?}}."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from components.data.records import Conversation, Dropped, Sifted
from components.errors import DataError
from components.types import Message


def is_chitchat(file: Path) -> bool:
    """A `.json` file that starts like that data set."""
    if file.suffix != ".json":
        return False
    with file.open("rb") as opened:
        start = opened.read(400)
    return start.lstrip().startswith(b"{") and b'"messages"' in start and b'"sender"' in start


def parse_chitchat(file: Path) -> Sifted:
    """Turns from messages: a speaker's consecutive ones are joined, the first speaker is the user, the second the
    assistant. Conversations of one speaker, of three, or of broken structure are dropped with the reason.
    """
    try:
        data = json.loads(file.read_bytes())
        items = sorted(data.items())
    except (ValueError, UnicodeDecodeError, AttributeError) as error:
        raise DataError(f"{file} is not the JSON object chitchat-dataset ships: {error}") from error
    kept: list[Conversation] = []
    dropped: list[Dropped] = []
    for key, raw in items:
        try:
            kept.append(_conversation(key, raw))
        except ValueError as error:
            dropped.append(Dropped(key, str(error), raw))
        except (KeyError, TypeError, AttributeError) as error:
            dropped.append(Dropped(key, f"broken structure: {type(error).__name__} {error}", raw))
    return Sifted(kept, dropped)


def _conversation(key: str, raw: dict[str, Any]) -> Conversation:
    turns: list[tuple[str, list[str]]] = []
    for message in (m for block in raw["messages"] for m in block):
        text = message["text"].strip()
        if not text:
            continue
        if turns and turns[-1][0] == message["sender"]:
            turns[-1][1].append(text)
        else:
            turns.append((message["sender"], [text]))
    speakers = list(dict.fromkeys(speaker for speaker, _ in turns))
    if len(speakers) != 2:
        raise ValueError(f"has {len(speakers)} speakers, not two" if speakers else "nobody says anything")
    roles = dict(zip(speakers, ("user", "assistant"), strict=True))
    messages: tuple[Message, ...] = tuple(
        {"role": roles[speaker], "content": " ".join(texts)} for speaker, texts in turns  # type: ignore[misc]
    )
    ratings = {name: float(value) for name, value in sorted((raw.get("ratings") or {}).items())}
    rating = sum(ratings.values()) / len(ratings) if ratings else None
    topic = (raw.get("prompt") or "").strip() or None
    return Conversation(key, messages, topic, rating, ratings, source="chitchat")
