"""Records nobody can learn from: empty, only links, unreadable, or without two sides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ratchet.components.data.personal_data import URL
from ratchet.components.data.records import Conversation, CountTokens, Dropped, Sifted
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Share
from ratchet.components.types import Message

EMPTY = re.compile(rf"(?:{URL.pattern}|\[link\]|[\W_])*", re.IGNORECASE)


@piece()
def remove_broken(records: Sequence[Conversation], count_tokens: CountTokens, *, max_broken: Share = 0.05,
                  max_repeat: Count = 40) -> Sifted:
    """Drop conversations that are empty or only links, hold over `max_broken` replacement characters (share), or one
    character over `max_repeat` times in a row (`hahaha...` is fine, a stuck key is not). Empty turns are cut out and
    the neighbours, now one speaker's, joined.
    """
    kept: list[Conversation] = []
    dropped: list[Dropped] = []
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
            dropped.append(Dropped(record.id, reason, record.as_json()))
            continue
        if record.opening == 0 and len(whole.messages) != len(record.messages):
            mended += 1
            record = whole
        kept.append(record)
    return Sifted(kept, dropped, {"empty turns cut out": mended})


def _broken(record: Conversation, max_broken: float, stuck: re.Pattern[str]) -> str:
    text = record.text
    if not text.strip():
        return "empty"
    if EMPTY.fullmatch(text):
        return "only links or punctuation"
    if text.count("\ufffd") > max_broken * len(text):
        return "unreadable characters"
    if stuck.search(text):
        return "one character without end"
    if record.rejected and not record.rejected[-1]["content"].strip():
        return "the rejected answer is empty"
    return ""


def joined(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Without empty turns; consecutive turns of one role become one."""
    out: list[Message] = []
    for message in messages:
        if not message["content"].strip():
            continue
        if out and out[-1]["role"] == message["role"] != "tool":
            out[-1] = {"role": message["role"], "content": f"{out[-1]['content']} {message['content']}"}
        else:
            out.append(message)
    return tuple(out)
