"""Preference pairs from records: given ones, rated answers to a prompt, rated conversations on a topic."""

from __future__ import annotations

import hashlib
import math
import random
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations, count

from ratchet.components.data.building import first_by_hash, over_limit, prompt_digest, prompt_meta
from ratchet.components.data.messages import score_of
from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected, prefix_within
from ratchet.components.recipes.sections import Pairs
from ratchet.components.recipes.splits import PAIR_COLUMNS
from ratchet.components.types import Group, Prompt, Trajectory


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
    kept: list[Group] = []
    dropped: list[Rejected] = []
    answers = [
        record for record in records if record.opening and record.rating is not None and not record.rejected
    ]
    given = [record for record in records if record.rejected]
    for record in [*given, *_best_against_worse(answers, dropped)]:
        try:
            kept.append(_given(record))
        except ValueError as error:
            dropped.append(Rejected(record.id, str(error), record.as_json()))
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
    short = _distinct({record.id for rated in pool.values() for record in rated})
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
            kept.append(_pair(topic, position, better, worse, short))
            paired.update(pair)
            used[pair[0]] += 1
            used[pair[1]] += 1
            made += 1
    alone = {record.id for rated in pool.values() for record in rated} - paired
    dropped += [Rejected(i, "no partner whose rating differs by min_gap", copy=True) for i in sorted(alone)]
    return FilterResult(
        first_by_hash(kept, options.limit, seed),
        dropped,
        {"identical windows": ties, "over the limit": over_limit(kept, options.limit)},
    )


def _best_against_worse(answers: Sequence[Conversation], dropped: list[Rejected]) -> list[Conversation]:
    """Pairs of answers to one prompt: the best rated (first among ties) against each lower-rated one."""
    prompts: dict[str, list[Conversation]] = defaultdict(list)
    for record in answers:
        prompts[prompt_digest(record.messages[: record.opening])].append(record)
    pairs = []
    for rated in prompts.values():
        best = max(rated, key=_rating)
        worse = [record for record in rated if _rating(record) < _rating(best)]
        pairs += [
            replace(
                best,
                id=f"{best.id}-{record.id}",
                rejected=record.messages,
                meta={**best.meta, "margin": _rating(best) - _rating(record)},
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


def _distinct(ids: Collection[str]) -> int:
    """Number of first characters, at least 8, that tell the ids apart."""
    return next(size for size in count(8) if len({one[:size] for one in ids}) == len(ids))


def _pair(topic: str, position: int, better: Conversation, worse: Conversation, short: int) -> Group:
    gap = _rating(better) - _rating(worse)
    name = hashlib.sha256(topic.encode()).hexdigest()[:8]
    prompt = Prompt(
        f"{name}-{position}-{better.id[:short]}-{worse.id[:short]}",
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
    """The pair of a record with both answers. `ValueError` if a column of `PAIR_COLUMNS` is no number."""
    prompt = record.prompt(
        record.id, (*record.head, *record.messages[: record.opening]), prompt_meta(record), record.answer
    )
    numbers = {name: score_of(name, record.meta.get(name)) for name in PAIR_COLUMNS}
    columns = {name: [value] * 2 for name, value in numbers.items() if value is not None}
    return Group(
        prompt,
        (Trajectory(record.messages[record.opening :]), Trajectory(record.rejected[record.opening :])),
        columns,
    )
