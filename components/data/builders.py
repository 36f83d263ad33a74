"""Builders of groups from the records of a split: SFT conversations, prompts, preference pairs, labelled
answers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.data.building import first_by_hash, over_limit, prompt_digest, prompt_meta
from ratchet.components.data.pair_builders import preference_pairs
from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected, prefix_within
from ratchet.components.recipes.sections import Contexts, Conversations, Labelled
from ratchet.components.types import Group, Trajectory


def conversation_groups(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    options: Conversations,
    seed: int = 0,
) -> FilterResult:
    """One group per conversation, with one answer, for SFT. The prompt is the topic and the first `opening`
    messages (or all before the first assistant turn); the answer is the rest, cut to `max_tokens` in total so
    that it ends with an assistant turn. With `min_rating`, unrated records are dropped too; records with
    `label` false always are.
    """
    kept: list[Group] = []
    dropped: list[Rejected] = []
    cut = 0
    for record in records:
        if options.min_rating is not None and (record.rating is None or record.rating < options.min_rating):
            dropped.append(
                Rejected(
                    record.id,
                    "rated below min_rating" if record.rating is not None else "not rated",
                    copy=True,
                )
            )
            continue
        if record.label is False:
            dropped.append(Rejected(record.id, "its label is false", copy=True))
            continue
        messages = record.messages[
            : prefix_within(record.head, record.messages, options.max_tokens, count_tokens)
        ]
        while messages and messages[-1]["role"] != "assistant":
            messages = messages[:-1]
        start = record.opening or next(
            (i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages)
        )
        turns = sum(m["role"] != "system" for m in messages)
        if start >= len(messages) or turns < options.min_turns or start == 0:
            cut_off = len(messages) < len(record.messages) and any(
                m["role"] == "assistant" for m in record.messages
            )
            dropped.append(
                Rejected(
                    record.id,
                    "the assistant speaks first"
                    if start == 0 and messages
                    else "no assistant turn within max_tokens"
                    if cut_off
                    else "no assistant turn or under min_turns",
                    record.as_json(),
                )
            )
            continue
        cut += len(messages) < len(record.messages)
        prompt = record.prompt(
            record.id, (*record.head, *messages[:start]), prompt_meta(record), record.answer
        )
        kept.append(Group(prompt, (Trajectory(messages[start:]),)))
    return FilterResult(
        first_by_hash(kept, options.limit, seed),
        dropped,
        {"truncated to max_tokens": cut, "over the limit": over_limit(kept, options.limit)},
    )


def prompt_groups(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    options: Contexts,
    seed: int = 0,
) -> FilterResult:
    """Prompts of `min_turns` to `max_turns` turns that end before an assistant reply, at most
    `per_conversation` from each record; a record with a fixed prompt (`opening`) gives that one. Repeated
    prompts are dropped. The reply in the data, if any, becomes the group's trajectory, and the prompt's
    `answer` unless the record has a reference answer.
    """
    kept: list[Group] = []
    dropped: list[Rejected] = []
    seen: set[str] = set()
    same = 0
    for record in records:
        skip = record.messages[:1] and record.messages[0]["role"] == "system"
        fits = prefix_within(
            record.head,
            record.messages[: record.opening or options.max_turns + bool(skip)],
            options.max_tokens,
            count_tokens,
        )
        spots = (
            [record.opening]
            if record.opening
            else [
                k
                for k in range(options.min_turns + bool(skip), len(record.messages))
                if record.messages[k - 1]["role"] == "user" and record.messages[k]["role"] == "assistant"
            ]
        )
        within = [k for k in spots if k <= fits]
        if not within:
            why = "prompt too long" if spots else "no user turn with a reply"
            dropped.append(Rejected(record.id, why, record.as_json()))
            continue
        rng = random.Random(f"{seed} {record.id}")
        for k in sorted(rng.sample(within, min(options.per_conversation, len(within)))):
            context = (*record.head, *record.messages[:k])
            key = prompt_digest(context)
            if key in seen:
                same += 1
                continue
            seen.add(key)
            reply = record.messages[k : k + 1] if not record.opening else record.messages[k:]
            reply = () if record.label is False else reply
            answer = record.answer if record.answer is not None else (reply[-1]["content"] if reply else None)
            name = record.id if record.opening else f"{record.id}:{k}"
            prompt = record.prompt(name, context, prompt_meta(record), answer)
            kept.append(Group(prompt, (Trajectory(reply),) if reply else ()))
    return FilterResult(
        first_by_hash(kept, options.limit, seed),
        dropped,
        {"prompts as before, left out": same, "over the limit": over_limit(kept, options.limit)},
    )


def labelled_answers(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    options: Labelled,
    seed: int = 0,
) -> FilterResult:
    """Groups of one: prompt and answer (the last turn of a conversation), with column `label`: 1.0 desirable,
    0.0 undesirable.
    """
    kept: list[Group] = []
    dropped: list[Rejected] = []
    for record in records:
        if record.label is None:
            dropped.append(
                Rejected(
                    record.id,
                    "a preference pair, not an answer with a label" if record.rejected else "it has no label",
                    record.as_json(),
                )
            )
            continue
        start = record.opening or len(record.messages) - 1
        prompt = record.prompt(
            record.id, (*record.head, *record.messages[:start]), prompt_meta(record), record.answer
        )
        kept.append(Group(prompt, (Trajectory(record.messages[start:]),), {"label": [float(record.label)]}))
    return FilterResult(
        first_by_hash(kept, options.limit, seed), dropped, {"over the limit": over_limit(kept, options.limit)}
    )


BUILDERS: Mapping[str, Any] = {
    "sft": conversation_groups,
    "reward": preference_pairs,
    "gold": preference_pairs,
    "pairs": preference_pairs,
    "labelled": labelled_answers,
    "prompts": prompt_groups,
    "evaluate": prompt_groups,
    "demonstrate": prompt_groups,
    "preferences": prompt_groups,
}
