"""Builders of groups from the records of a split: SFT conversations, prompts, preference pairs, labelled
answers.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected, prefix_within
from ratchet.components.recipes.sections import Contexts, Conversations, Labelled, Pairs
from ratchet.components.recipes.splits import PAIR_COLUMNS
from ratchet.components.types import Group, Message, Prompt, Trajectory


def conversation_groups(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    options: Conversations,
    seed: int = 0,
) -> FilterResult:
    """Groups of one for SFT: the prompt is topic and first user turn, the trajectory the rest, up to
    `max_tokens` in total and ending with the assistant. With `min_rating`, unrated records are dropped too.
    Answers with `label` false are dropped.
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
        prompt = Prompt(
            record.id, (*record.head, *messages[:start]), record.answer, record.source, _meta(record)
        )
        kept.append(Group(prompt, (Trajectory(messages[start:]),)))
    return FilterResult(
        _first(kept, options.limit, seed),
        dropped,
        {"truncated to max_tokens": cut, "over the limit": _over(kept, options.limit)},
    )


def prompt_groups(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    options: Contexts,
    seed: int = 0,
) -> FilterResult:
    """Contexts of `min_turns` to `max_turns` turns that end with a user turn; at most `per_conversation`,
    without repeats. The human reply becomes the prompt's `answer` and the group's trajectory, if there is
    one.
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
            prompt = Prompt(name, context, answer, record.source, _meta(record))
            kept.append(Group(prompt, (Trajectory(reply),) if reply else ()))
    return FilterResult(
        _first(kept, options.limit, seed),
        dropped,
        {"repeated context": same, "over the limit": _over(kept, options.limit)},
    )


def preference_pairs(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    options: Pairs,
    seed: int = 0,
) -> FilterResult:
    """Groups of two, chosen first. Rows that are pairs are kept. For prompts with several rated answers, the
    best is paired with each lower-rated one. Rated conversations on one topic are cut after the same number
    of turns (`positions`, even, so that they end with the assistant) and paired if mean ratings differ by
    `min_gap`.

    `exclude`: uninformative ratings (e.g. a form's default). `per_topic`: maximum pairs per topic and
    position;
    `per_conversation`: per conversation and position. The prompt is the topic; columns `margin`, `rating`.
    """
    kept = [_given(record) for record in records if record.rejected]
    dropped: list[Rejected] = []
    answers = [
        record for record in records if record.opening and record.rating is not None and not record.rejected
    ]
    kept += _best_against_worse(answers, dropped)
    pool: dict[tuple[str, int], list[Conversation]] = defaultdict(list)
    for record in records:
        if record.rejected or (record.opening and record.rating is not None):
            continue
        why = (
            "a single labelled answer, not a pair"
            if record.label is not None
            else "not a pair, and no topic to pair it by"
            if not record.topic
            else "not rated"
            if record.rating is None
            else ("uninformative rating" if record.rating in options.exclude else "")
        )
        fits = (
            0
            if why
            else prefix_within(
                record.head,
                record.messages[: max(options.positions, default=0)],
                options.max_tokens,
                count_tokens,
            )
        )
        usable = [p for p in options.positions if p <= fits and record.messages[p - 1]["role"] == "assistant"]
        if not why and not usable:
            why = "too short or too long for every position"
        if why:
            dropped.append(Rejected(record.id, why, record.as_json(), copy=True))
        for position in usable:
            pool[str(record.topic), position].append(record)
    paired: set[str] = set()
    ties = 0
    for (topic, position), rated in sorted(pool.items()):
        pairs = sorted(
            (a.id, b.id) for a, b in combinations(rated, 2) if abs(_rating(a) - _rating(b)) >= options.min_gap
        )
        random.Random(f"{seed} {topic} {position}").shuffle(pairs)
        by_id = {record.id: record for record in rated}
        used: dict[str, int] = defaultdict(int)
        made = 0
        for pair in pairs:
            if options.per_topic is not None and made >= options.per_topic:
                break
            if (
                options.per_conversation is not None
                and max(used[pair[0]], used[pair[1]]) >= options.per_conversation
            ):
                continue
            better, worse = sorted((by_id[i] for i in pair), key=_rating, reverse=True)
            if better.messages[:position] == worse.messages[:position]:
                ties += 1
                continue
            kept.append(_pair(topic, position, better, worse))
            paired.update(pair)
            used[pair[0]] += 1
            used[pair[1]] += 1
            made += 1
    alone = {record.id for rated in pool.values() for record in rated} - paired
    dropped += [Rejected(i, "no partner whose rating differs by min_gap", copy=True) for i in sorted(alone)]
    return FilterResult(
        _first(kept, options.limit, seed),
        dropped,
        {"identical windows": ties, "over the limit": _over(kept, options.limit)},
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
        prompt = Prompt(
            record.id, (*record.head, *record.messages[:start]), record.answer, record.source, _meta(record)
        )
        kept.append(Group(prompt, (Trajectory(record.messages[start:]),), {"label": [float(record.label)]}))
    return FilterResult(
        _first(kept, options.limit, seed), dropped, {"over the limit": _over(kept, options.limit)}
    )


def _best_against_worse(answers: Sequence[Conversation], dropped: list[Rejected]) -> list[Group]:
    """Pairs of answers to one prompt: the best rated (first among ties) against each lower-rated one."""
    prompts: dict[str, list[Conversation]] = defaultdict(list)
    for record in answers:
        prompts[prompt_digest(record.messages[: record.opening])].append(record)
    pairs = []
    for rated in prompts.values():
        best = max(rated, key=_rating)
        worse = [record for record in rated if _rating(record) < _rating(best)]
        pairs += [
            _given(
                replace(
                    best,
                    id=f"{best.id}-{record.id}",
                    rejected=record.messages,
                    meta={**best.meta, "margin": _rating(best) - _rating(record)},
                )
            )
            for record in worse
        ]
        alone = [record for record in rated if record is not best and record not in worse] + (
            [] if worse else [best]
        )
        dropped += [
            Rejected(record.id, "no other answer to its prompt is rated lower", copy=True) for record in alone
        ]
    return pairs


def _rating(record: Conversation) -> float:
    return record.rating if record.rating is not None else math.nan


def _pair(topic: str, position: int, better: Conversation, worse: Conversation) -> Group:
    gap = _rating(better) - _rating(worse)
    name = hashlib.sha256(topic.encode()).hexdigest()[:8]
    prompt = Prompt(
        f"{name}-{position}-{better.id[:8]}-{worse.id[:8]}",
        better.head,
        source=better.source,
        meta={"topic": topic, "position": position},
    )
    paths = tuple(
        Trajectory(
            record.messages[:position], meta={"conversation": record.id, "ratings": dict(record.ratings)}
        )
        for record in (better, worse)
    )
    return Group(prompt, paths, {"margin": [gap, gap], "rating": [_rating(better), _rating(worse)]})


def _given(record: Conversation) -> Group:
    prompt = Prompt(
        record.id,
        (*record.head, *record.messages[: record.opening]),
        record.answer,
        record.source,
        _meta(record),
    )
    columns = {name: [float(record.meta[name])] * 2 for name in PAIR_COLUMNS if name in record.meta}
    return Group(
        prompt,
        (Trajectory(record.messages[record.opening :]), Trajectory(record.rejected[record.opening :])),
        columns,
    )


def _meta(record: Conversation) -> dict[str, Any]:
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


def _first(groups: list[Group], limit: int | None, seed: int) -> list[Group]:
    """At most `limit` groups, chosen by hash, in their original order."""
    if limit is None or len(groups) <= limit:
        return groups
    order = sorted(
        range(len(groups)), key=lambda i: hashlib.sha256(f"{seed} {groups[i].prompt.id}".encode()).digest()
    )
    return [groups[i] for i in sorted(order[:limit])]


def _over(groups: list[Group], limit: int | None) -> int:
    return max(0, len(groups) - limit) if limit is not None else 0


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
