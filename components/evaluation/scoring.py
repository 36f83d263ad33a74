"""Scores of the answers of each arm: metrics, gold measure, reward models, quality measures."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import DataError
from ratchet.components.evaluation.answers import answer_rates
from ratchet.components.evaluation.bootstrap import Interval
from ratchet.components.evaluation.diversity import cosine_spread, distinct_n, self_bleu
from ratchet.components.evaluation.encoder import Encoder
from ratchet.components.evaluation.gold import GoldMeasure
from ratchet.components.evaluation.results import Scored
from ratchet.components.piece import build
from ratchet.components.recipes.arms import label_of
from ratchet.components.types import Columns, Context, Group

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine

logger = logging.getLogger(__name__)
Ragged = list[list[float]]


def describe_answers(groups: Sequence[Group], encoder: Encoder | None) -> dict[str, float]:
    """Length, stop reasons, refusal rate and diversity of an arm."""
    rows = [t for g in groups for t in g.trajectories]
    texts = [t.text for t in rows]
    found = {
        "length": sum(sum(t.mask) for t in rows) / len(rows),
        **answer_rates(texts, [t.stop for t in rows]),
        "distinct_1": distinct_n(texts, 1),
        "distinct_2": distinct_n(texts, 2),
        "self_bleu": self_bleu(texts),
    }
    if encoder:
        found["embedding_spread"] = cosine_spread(encoder(texts))
    return found


def human_logprobs(
    engine: Engine, held_out: Sequence[Group], longest: int | None = None
) -> tuple[Ragged, list[list[bool]]]:
    """Log-probs and loss masks of human replies to the held-out prompts, for the perplexity (alignment
    tax). Without those that exceed `longest` tokens with their prompt, the model's context.
    """
    encoded = [
        group
        for group in map(engine.encode, (g for g in held_out if g.trajectories))
        if not longest or max(len(t.inputs["tokens"]) for t in group.trajectories) <= longest
    ]
    rows = engine.score(encoded, frozenset({"logprobs"}))
    return [p for row in rows for p in row["logprobs"]], [
        list(t.mask) for g in encoded for t in g.trajectories
    ]


def scores_of(
    groups: Sequence[Group], metrics: Sequence[Mapping[str, Any]], ctx: Context, gold: GoldMeasure | None
) -> dict[str, Ragged]:
    """Scores of an arm, per prompt and answer: gold measure and the recipe's metrics, which may use the arm's
    model as `policy`.
    """
    found: dict[str, Ragged] = {}
    if gold is not None:
        flat = iter(
            gold.score_replies([[*g.prompt.messages, *t.messages] for g in groups for t in g.trajectories])
        )
        found["gold"] = [[next(flat) for _ in g.trajectories] for g in groups]
    scored = list(groups)
    for spec in metrics:
        columns = build("annotate", spec)(scored, ctx)
        scored = [g.extended({name: rows[i] for name, rows in columns.items()}) for i, g in enumerate(scored)]
        found |= rewards(columns)
    return found


def rewards_of(
    answers: Mapping[str, Sequence[Group]], context: Context, models: Sequence[str]
) -> dict[str, dict[str, Ragged]]:
    """Scores by reward models, of arms with the same prompts."""
    found: dict[str, dict[str, Ragged]] = {arm: {} for arm in answers}
    for model in models:
        columns = rewards(
            build("annotate", {"name": "rewards.reward_model", "model": model})(together(answers), context)
        )
        for name, values in columns.items():
            for arm, rows in apart(values, answers).items():
                found[arm][name] = rows
    return found


def measures_of(
    answers: Mapping[str, Sequence[Group]],
    scores: Mapping[str, Mapping[str, Ragged]],
    measures: Sequence[Mapping[str, Any]],
    contexts: Mapping[str, Context],
) -> dict[str, dict[str, Ragged]]:
    """Arm -> measure -> one number per answer. A measure gets the answers of one arm, since it may describe
    the set of answers to a prompt, with the rewards as columns. `contexts`: by arm, with the arm's model as
    `policy`.
    """
    found: dict[str, dict[str, Ragged]] = {arm: {} for arm in answers}
    columns = {
        arm: {name: rows for name, rows in given.items() if name.startswith("reward.")}
        for arm, given in scores.items()
    }
    for spec in measures:
        measure = build("measure", spec, reserved=("label",))
        for arm, groups in answers.items():
            scored = [
                group.extended({name: rows[i] for name, rows in columns[arm].items()})
                for i, group in enumerate(groups)
            ]
            found[arm][label_of(spec)] = measure(scored, contexts[arm])
    return found


def reports_of(
    scored: Scored, reports: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Interval], dict[str, str]]:
    """Label of each report -> its number with an interval, and label -> reason of those that are not defined
    for these answers (`DataError`), which are logged as warnings.
    """
    found, undefined = {}, {}
    for spec in reports:
        try:
            found[label_of(spec)] = build("report", spec, reserved=("label",))(scored)
        except DataError as error:
            undefined[label_of(spec)] = str(error)
            logger.warning("%s", error)
    return found, undefined


def together(answers: Mapping[str, Sequence[Group]]) -> list[Group]:
    """The answers of all arms to a prompt as one group, so that a scoring model processes each prompt
    once.
    """
    return [
        Group(groups[0].prompt, tuple(t for g in groups for t in g.trajectories))
        for groups in zip(*answers.values(), strict=True)
    ]


def apart(
    rows: Sequence[Sequence[Any]], answers: Mapping[str, Sequence[Group]]
) -> dict[str, list[list[Any]]]:
    """Split values of `together` (one per answer) by arm."""
    found: dict[str, list[list[Any]]] = {arm: [] for arm in answers}
    for row, groups in zip(rows, zip(*answers.values(), strict=True), strict=True):
        rest: Iterator[Any] = iter(row)
        for arm, group in zip(answers, groups, strict=True):
            found[arm].append([next(rest) for _ in group.trajectories])
    return found


def rewards(columns: Columns) -> dict[str, Any]:
    """The reward columns."""
    return {
        name: values
        for name, values in columns.items()
        if name.startswith("reward.") and not name.endswith(".status")
    }


def settled(scores: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Ragged]], dict[str, int]]:
    """Scores of every arm, where an answer without a valid score (e.g. an empty one) gets the lowest score of
    all arms instead of 0; and the number of such answers by score. A score without any valid value is left
    out.
    """
    full: dict[str, dict[str, Ragged]] = {arm: {} for arm in scores}
    counts: dict[str, int] = {}
    for name in next(iter(scores.values())):
        every = [value for columns in scores.values() for row in columns[name] for value in row]
        known = [value for value in every if value is not None and math.isfinite(value)]
        if len(known) < len(every):
            counts[f"answers without {name}"] = len(every) - len(known)
        for arm, columns in scores.items() if known else ():
            full[arm][name] = [
                [min(known) if value is None or not math.isfinite(value) else value for value in row]
                for row in columns[name]
            ]
    return full, counts
