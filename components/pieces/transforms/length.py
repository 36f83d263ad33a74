"""Transform `length`: bounds on turns and on tokens of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected, prefix_within
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural


@piece()
def length(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    *,
    min_turns: Natural = 2,
    max_turns: Count = 200,
    max_tokens: Count = 2048,
) -> FilterResult:
    """Truncate conversations after `max_turns` or `max_tokens`, whichever comes first; drop those then under
    `min_turns`.

    Rows with a fixed prompt (preferences, prompts) are never truncated, since their end matters; too long
    ones are dropped.
    """
    kept: list[Conversation] = []
    dropped: list[Rejected] = []
    cut = 0
    for record in records:
        fits = prefix_within(record.head, record.messages[:max_turns], max_tokens, count_tokens)
        if record.opening:
            too_long = fits < len(record.messages) or (
                record.rejected
                and prefix_within(record.head, record.rejected, max_tokens, count_tokens)
                < len(record.rejected)
            )
            if too_long:
                dropped.append(
                    Rejected(
                        record.id,
                        f"too long: over {max_tokens} tokens or {max_turns} turns",
                        record.as_json(),
                    )
                )
            else:
                kept.append(record)
        elif fits < min_turns:
            why = (
                "too long: the first turns exceed max_tokens"
                if len(record.messages) >= min_turns
                else "too short"
            )
            dropped.append(Rejected(record.id, f"{why}", record.as_json()))
        else:
            cut += fits < len(record.messages)
            kept.append(
                record if fits == len(record.messages) else replace(record, messages=record.messages[:fits])
            )
    return FilterResult(kept, dropped, {"truncated": cut})
