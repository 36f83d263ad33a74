"""`--limit N`: reduces a recipe to a smoke test that runs every stage on little data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ratchet.components.recipes.phases import with_sections
from ratchet.components.recipes.schema import Fit, Learn, Online, Recipe, Reward
from ratchet.components.recipes.sections import Contexts, Conversations, Data, Labelled, Limits, Pairs

LIMITED = "-limited"
"""End of the name of a smoke test."""
ROUNDS = 2
PAIRS = 64
"""Minimum number of pairs, so that every fold of the linear probe's cross-validation has one."""
UNCERTIFIED = Limits(
    min_accuracy=None,
    min_accuracy_by_kind=None,
    best_of_n_rises=None,
    min_pairs=None,
    max_ties=None,
    max_calibration_error=None,
    max_length_correlation=None,
)


def limited(recipe: Recipe, count: int) -> Recipe:
    """The recipe with at most `count` groups per split, one epoch, two rounds, and as many prompts per round
    and held-out prompts as that allows. Checks that need more data are off: certificates, ended answers,
    gates, topics. Health rules only warn. Nothing is registered, and the name ends in `-limited`, so that no
    run is compared with it.
    """
    models = {
        name: replace(source, certificate=UNCERTIFIED) if source.role == "reward" else source
        for name, source in recipe.models.items()
    }
    changes: dict[str, Any] = {
        "name": f"{recipe.name[:92]}{LIMITED}",
        "models": models,
        "data": _data(recipe.data, count),
        "claim": None,
        "register": None,
    }
    if evaluate := recipe.evaluate:
        changes["evaluate"] = replace(
            evaluate,
            **{
                key: min(getattr(evaluate, key), count)
                for key in ("prompts", "perplexity_rows", "transcripts")
            },
        )
    return with_sections(replace(recipe, **changes), lambda section, _: _section(section, count))


def _section(section: Any, count: int) -> Any:
    if isinstance(section, Learn | Reward | Online):
        section = replace(section, fit=_fit(section.fit, count))
    if isinstance(section, Reward):
        return replace(section, certificate=UNCERTIFIED)
    return _online(section, count) if isinstance(section, Online) else section


def _data(data: Data, count: int) -> Data:
    parts = {
        field.name: part
        for field in dataclasses.fields(data)
        if isinstance(part := getattr(data, field.name), Conversations | Contexts | Labelled | Pairs)
    }
    smaller = {
        name: replace(part, limit=min(part.limit or most, most))
        for name, part in parts.items()
        for most in [max(count, PAIRS) if isinstance(part, Pairs) else count]
    }
    return replace(
        data,
        min_groups=min(data.min_groups, 1),
        min_topics=min(data.min_topics, 1),
        max_topic_share=1.0,
        max_quarantined=max(data.max_quarantined, 0.5),
        **smaller,
    )


def _fit(fit: Fit, count: int) -> Fit:
    steps = max(1, count // min(fit.batch, count))
    return replace(
        fit,
        batch=min(fit.batch, count),
        epochs=min(fit.epochs, 1),
        max_steps=min(fit.max_steps or steps, steps),
        min_ended=0.0,
    )


def _online(online: Online, count: int) -> Online:
    rounds = min(online.rounds, ROUNDS, count)
    prompts = min(online.prompts_per_round, count // rounds)
    by_round = {
        number: _change(change) for number, change in online.by_round.items() if int(number) <= rounds
    }
    ended_by_rounds = {"max_steps": None} if online.cadence == "step" else {}
    return replace(
        online,
        rounds=rounds,
        prompts_per_round=prompts,
        start=min(online.start, rounds),
        roles={
            name: replace(
                role, start=min(role.start, rounds), fit=replace(_fit(role.fit, count), **ended_by_rounds)
            )
            for name, role in online.roles.items()
        },
        by_round=by_round,
        fit=replace(online.fit, **ended_by_rounds),
        watch=replace(online.watch, kl_prompts=min(online.watch.kl_prompts, prompts)),
        health={name: replace(rule, action="warn") for name, rule in online.health.items()},
    )


def _change(change: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of a round without those of what `limited` reduces or switches off."""
    reduced = {"fit": ("batch", "epochs", "max_steps", "min_ended"), "watch": ("kl_prompts",)}
    kept = {key: value for key, value in change.items() if key not in ("prompts_per_round", "health")}
    for key, keys in reduced.items():
        if isinstance(kept.get(key), Mapping):
            kept[key] = {name: value for name, value in kept[key].items() if name not in keys}
    return kept
