"""Filling in of the defaults of every piece: the form of a recipe that runs save and that store keys hash."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.piece import catalogue, describe, resolve
from ratchet.components.recipes.arms import rollout_of
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.phases import sections, with_sections
from ratchet.components.recipes.ranges import Finite
from ratchet.components.recipes.schema import Online, Recipe, Role, Spec
from ratchet.components.recipes.schema_evaluation import Arm, BestOf, Evaluate
from ratchet.components.recipes.splits import PROMPT_SECTIONS

MEASURE_KEYS = ("label",)
OBJECTIVE_KEYS = ("weight", "reduce", "label", "weight_column", "where")
SCHEDULED = {"start", "end", "initial"}
"""Options of schedules that are values of the number in whose place the schedule is."""


def with_defaults(recipe: Recipe) -> Recipe:
    """The recipe with the defaults of every piece written out."""
    own: dict[str, Any] = {
        name: dataclasses.replace(
            part, transforms=_each("transform", part.transforms, f"data.{name}.transforms")
        )
        for name in PROMPT_SECTIONS
        if (part := getattr(recipe.data, name))
    }
    if recipe.data.parser != "auto":
        own["parser"] = resolve("parser", recipe.data.parser, where="data.parser")
    own["sources"] = [
        one
        if one.parser == "auto"
        else dataclasses.replace(one, parser=resolve("parser", one.parser, where=f"data.sources[{i}].parser"))
        for i, one in enumerate(recipe.data.sources)
    ]
    changes: dict[str, Any] = {
        "data": dataclasses.replace(
            recipe.data, transforms=_each("transform", recipe.data.transforms, "data.transforms"), **own
        )
    }
    if recipe.evaluate:
        metrics = _each("annotate", recipe.evaluate.metrics, "evaluate.metrics")
        measures = [
            resolve("measure", spec, where=f"evaluate.measures[{i}]", reserved=MEASURE_KEYS)
            for i, spec in enumerate(recipe.evaluate.measures)
        ]
        reports = [
            resolve("report", spec, where=f"evaluate.reports[{i}]", reserved=MEASURE_KEYS)
            for i, spec in enumerate(recipe.evaluate.reports)
        ]
        evaluate = dataclasses.replace(
            recipe.evaluate,
            rollout=_evaluated(recipe),
            metrics=metrics,
            measures=measures,
            reports=reports,
            best_of=_best_of(recipe.evaluate.best_of, "evaluate"),
        )
        changes["evaluate"] = dataclasses.replace(evaluate, arms=_arms(evaluate))
    if recipe.register and not recipe.register.model:
        changes["register"] = dataclasses.replace(recipe.register, model=recipe.name)
    return with_sections(dataclasses.replace(recipe, **changes), section_with_defaults)


def _evaluated(recipe: Recipe) -> Spec | None:
    """`evaluate.rollout`; if it is null, the rollout of the last online phase in an environment as the policy
    acts in it, without the options that the evaluation sets for all arms.
    """
    if recipe.evaluate is None or recipe.evaluate.rollout is not None:
        return recipe.evaluate.rollout if recipe.evaluate else None
    for phase in reversed(sections(recipe)):
        if isinstance(phase.section, Online) and "environment" in phase.section.rollout:
            acting = _acting(phase.section.rollout, f"{phase.where}.rollout")
            return {k: v for k, v in acting.items() if k not in ("responses_per_prompt", "temperature")}
    return None


def _acting(spec: Spec, where: str) -> Spec:
    """The rollout in which the policy itself acts in the environment of `spec`, within its limits: `spec`, or
    in place of one with logged or shown episodes, which samples nothing, one of the same environments.
    """
    given = describe("rollout", spec["name"], where=where)
    kinds = {option.nested for option in given.options.values()} - {""}
    for name, one in catalogue("rollout").items() if "logprobs.sampled" not in given.writes else ():
        same = kinds & {option.nested for option in one.options.values()}
        if same and "logprobs.sampled" in one.writes:
            return {"name": name, **{key: value for key, value in spec.items() if key in one.options}}
    return spec


def _best_of(best_of: BestOf | None, where: str) -> BestOf | None:
    if best_of is None:
        return None
    return dataclasses.replace(
        best_of, annotate=_each("annotate", best_of.annotate, f"{where}.best_of.annotate")
    )


def _arms(section: Evaluate) -> dict[str, Arm] | None:
    if section.arms is None:
        return None
    return {
        name: dataclasses.replace(
            arm,
            rollout=rollout_of(section, arm, f"evaluate.arms.{name}.rollout"),
            best_of=_best_of(arm.best_of, f"evaluate.arms.{name}"),
        )
        for name, arm in section.arms.items()
    }


def _each(slot: str, specs: Sequence[Spec], where: str) -> list[dict[str, Any]]:
    return [resolve(slot, spec, where=f"{where}[{i}]") for i, spec in enumerate(specs)]


def _resolved_samples(section: Any, name: str) -> Any:
    here: dict[str, Any] = {
        slot: _each("annotate" if slot == "annotate" else "select", getattr(section, slot), f"{name}.{slot}")
        for slot in ("annotate", "sft", "reward", "select")
        if hasattr(section, slot)
    }
    if section.rollout is not None:
        here["rollout"] = resolve("rollout", section.rollout, where=f"{name}.rollout")
    return dataclasses.replace(section, **here)


def section_with_defaults(section: Any, name: str) -> Any:
    """A section or phase with the defaults of its pieces; `name`: its path in the recipe."""
    if not hasattr(section, "fit"):
        return _resolved_samples(section, name)
    fit = dataclasses.replace(
        section.fit,
        adapter=resolve("adapter", section.fit.adapter, where=f"{name}.fit.adapter"),
        updates={
            role: [
                objective_with_defaults(spec, f"{name}.fit.updates.{role}[{i}]")
                for i, spec in enumerate(parts)
            ]
            for role, parts in section.fit.updates.items()
        },
    )
    here: dict[str, Any] = {"fit": fit}
    for slot in ("annotate", "select", "prepare", "fresh"):
        if hasattr(section, slot):
            here[slot] = _each(
                "select" if slot == "select" else "annotate", getattr(section, slot), f"{name}.{slot}"
            )
    if isinstance(section, Role) and section.target is not None:
        here["target"] = resolve("reference", section.target, where=f"{name}.target")
    if isinstance(section, Online):
        here["roles"] = {
            role: section_with_defaults(one, f"{name}.roles.{role}") for role, one in section.roles.items()
        }
        here["rollout"] = resolve("rollout", section.rollout, where=f"{name}.rollout")
        here["prompts"] = resolve("prompts", section.prompts, where=f"{name}.prompts")
        if isinstance(section.watch.gold, Mapping):
            gold = resolve("annotate", section.watch.gold, where=f"{name}.watch.gold")
            here["watch"] = dataclasses.replace(section.watch, gold=gold)
        if isinstance(section.reference, Mapping):
            here["reference"] = resolve("reference", section.reference, where=f"{name}.reference")
    return dataclasses.replace(section, **here)


def objective_with_defaults(spec: Spec, where: str) -> dict[str, Any]:
    spec = {key: value for key, value in spec.items() if value is not None or key not in OBJECTIVE_KEYS}
    full = resolve("objective", spec, where=where, reserved=OBJECTIVE_KEYS)
    description = describe("objective", full["name"])
    default = "token_mean" if description.unit == "step" else "unit_mean"
    full = {"weight": 1.0, "reduce": default, "label": full["name"], **full}
    for key, value in full.items():
        if isinstance(value, Mapping) and key not in ("reduce", "label", "weight_column", "where"):
            full[key] = resolve("schedule", value, where=f"{where}.{key}")
            kind = description.options[key].kind if key in description.options else Finite
            for end in sorted(SCHEDULED & full[key].keys()):
                conform(kind, full[key][end], f"{where}.{key}.{end}")
    if not isinstance(full["weight"], Mapping):
        full["weight"] = conform(Finite, full["weight"], f"{where}.weight")
    return full
