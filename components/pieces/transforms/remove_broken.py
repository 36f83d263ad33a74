"""Transform `remove_broken`: drops empty and unreadable records and those without an assistant turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ratchet.components.data.personal_data import URL
from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Share
from ratchet.components.types import Message

EMPTY = re.compile(rf"(?:{URL.pattern}|\[link\]|[\W_])*", re.IGNORECASE)


@piece()
def remove_broken(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    *,
    max_broken: Share = 0.05,
    max_repeat: Count = 40,
) -> FilterResult:
    """Drop conversations that are empty or only links, have more than a share `max_broken` of replacement
    characters, or repeat one character more than `max_repeat` times (`hahaha...` is kept). In records
    without a fixed prompt, empty turns are removed, and neighbouring turns of one speaker merged.
    """
    kept: list[Conversation] = []
    dropped: list[Rejected] = []
    mended = 0
    stuck = re.compile(rf"(\S)\1{{{max_repeat},}}")
    for record in records:
        reason = _broken(record, max_broken, stuck)
        whole = replace(record, messages=joined(record.messages), rejected=joined(record.rejected))
        if not reason and record.opening == 0 and not any(m["role"] == "assistant" for m in whole.messages):
            reason = "no assistant turn"
        if not reason and record.rejected and whole.messages == whole.rejected:
            reason = "chosen and rejected are the same"
        if reason:
            dropped.append(Rejected(record.id, reason, record.as_json()))
            continue
        if record.opening == 0 and len(whole.messages) != len(record.messages):
            mended += 1
            record = whole
        kept.append(record)
    return FilterResult(kept, dropped, {"empty turns removed": mended})


def _broken(record: Conversation, max_broken: float, stuck: re.Pattern[str]) -> str:
    text = record.text
    if not text.strip():
        return "empty"
    if EMPTY.fullmatch(text):
        return "only links or punctuation"
    if text.count("\ufffd") > max_broken * len(text):
        return "unreadable characters"
    if stuck.search(text):
        return "one character repeated"
    if record.rejected and not record.rejected[-1]["content"].strip():
        return "the rejected answer is empty"
    return ""


def joined(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Remove empty turns and merge consecutive turns of one role."""
    out: list[Message] = []
    for message in messages:
        if not message["content"].strip():
            continue
        if out and out[-1]["role"] == message["role"] != "tool":
            out[-1] = {"role": message["role"], "content": f"{out[-1]['content']} {message['content']}"}
        else:
            out.append(message)
    return tuple(out)
