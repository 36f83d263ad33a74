"""Conditions named in a record's prompt, such as the quality of its answer."""

from __future__ import annotations

from dataclasses import replace

from ratchet.components.data.messages import with_system
from ratchet.components.data.records import Conversation


def conditioned(record: Conversation, text: str) -> Conversation:
    """The record with the system message `text` in the prompt of its answer and of its rejected one. The
    record's own system message, or its topic, follows in the same message, since templates allow one.
    """
    messages = with_system((*record.head, *record.messages), text)
    return replace(
        record,
        messages=messages,
        rejected=with_system((*record.head, *record.rejected), text) if record.rejected else (),
        opening=record.opening + len(messages) - len(record.messages) if record.opening else 0,
    )


def without_condition(record: Conversation, known: set[str]) -> Conversation:
    """The record without a condition in `known` that `conditioned` gave it; unchanged without one."""
    first = record.messages[0] if record.messages else None
    condition, _, own = (first["content"] if first else "").partition("\n\n")
    if first is None or first["role"] != "system" or condition not in known:
        return record
    system = with_system((), own)
    return replace(
        record,
        messages=(*system, *record.messages[1:]),
        rejected=(*system, *record.rejected[1:]) if record.rejected else (),
        opening=record.opening - 1 + len(system) if record.opening else 0,
    )
