"""What builders of groups share: the limit of a split, a prompt's meta and digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ratchet.components.data.records import Conversation
from ratchet.components.types import Group, Message


def prompt_meta(record: Conversation) -> dict[str, Any]:
    own: dict[str, Any] = dict(record.meta) | {"conversation": record.id}
    if record.topic:
        own["topic"] = record.topic
    if record.rating is not None:
        own["rating"] = record.rating
    return own


def prompt_digest(messages: Sequence[Message]) -> str:
    """Digest of a prompt's roles and words, ignoring letter case and whitespace."""
    turns = [[m["role"], " ".join(m["content"].lower().split())] for m in messages]
    return hashlib.sha256(json.dumps(turns).encode()).hexdigest()


def first_by_hash(groups: list[Group], limit: int | None, seed: int) -> list[Group]:
    """At most `limit` groups, chosen by hash, in their original order."""
    if limit is None or len(groups) <= limit:
        return groups
    order = sorted(
        range(len(groups)), key=lambda i: hashlib.sha256(f"{seed} {groups[i].prompt.id}".encode()).digest()
    )
    return [groups[i] for i in sorted(order[:limit])]


def over_limit(groups: list[Group], limit: int | None) -> int:
    return max(0, len(groups) - limit) if limit is not None else 0
