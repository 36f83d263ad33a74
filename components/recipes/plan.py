"""Execution plan: the stages of a recipe, their inputs, and the store keys of their outputs. Pure, without
loading models.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from ratchet.components.data.verifiers import verifiers
from ratchet.components.recipes.arms import PlannedArm, arms
from ratchet.components.recipes.phases import phases
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.plan_phases import plan_phase
from ratchet.components.recipes.planner import Planner, Stage
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.read_splits import read_splits
from ratchet.components.recipes.reward_models import (
    before_answers,
    certified,
    reward_models,
    scoring_models,
)
from ratchet.components.recipes.schema import Recipe
from ratchet.components.recipes.source_keys import our_sources, source_digest, starts

__all__ = ["Stage", "our_sources", "plan", "source_digest", "starts"]


def plan(recipe: Recipe, profile: Profile) -> dict[str, Stage]:
    """Every stage of the run in order, keyed by name."""
    planner = Planner(recipe, profile, our_sources())
    _models(planner)
    _data(planner)
    names, first = certified(recipe), before_answers(recipe)
    _certificates(planner, first, answered=False)
    if recipe.evaluate and recipe.evaluate.gold:
        inputs = {"encoder": "model_encoder", "data": planner.curated}
        planner.gold = {
            "gold": planner.add("gold", "gold", "weights", {}, inputs),
            "encoder": "model_encoder",
        }
    for phase in phases(recipe):
        plan_phase(planner, phase)
        if phase.where == "demonstrate":
            _certificates(planner, names - first, answered=True)
    if recipe.evaluate:
        _evaluation(planner)
    return planner.stages


def _models(planner: Planner) -> None:
    for name, source in planner.recipe.models.items():
        where = {
            key: value
            for key, value in plain(source).items()
            if key not in ("shape", "certificate")
            and (value or key not in ("base", "base_sha256", "remote_code", "role"))
        }
        tiny = "make_tiny_vision" if source.source.startswith("generate:tiny_vision") else "make_tiny"
        does = {"tiny": tiny, "new": "make_new"}.get(source.format, "fetch_model")
        planner.models[name] = planner.add(
            f"model_{name}", does, "weights", where, heavy=False, part="curate"
        )
    planner.policy = planner.initial = planner.models["policy"]


def _data(planner: Planner) -> None:
    """Download, curation and validation of the data."""
    data = planner.recipe.data
    origins = [
        {
            key: value
            for key in ("source", "sha256", "config")
            if (value := getattr(one, key)) or key != "config"
        }
        for one in data.every_source
    ]
    sources = {"sources": origins} if data.sources else origins[0]
    raw = planner.add("raw", "fetch_data", "data", sources, heavy=False, part="curate")
    checked = verifiers(planner.recipe)
    options = {
        "section": data,
        # of two duplicates the later split loses its own, and a key does not know the order of a mapping
        **({"order": list(data.splits)} if data.splits else {"read": sorted(read_splits(planner.recipe))}),
        **({"verifiers": checked} if checked else {}),
    }
    inputs = {"raw": raw, "policy": planner.policy}
    drafts = planner.add("drafts", "curate", "data", options, inputs, heavy=False, part="curate")
    planner.curated = planner.add(
        "curated", "validate", "data", {"section": data}, {"drafts": drafts}, heavy=False, part="curate"
    )


def _certificates(planner: Planner, names: Set[str], *, answered: bool) -> None:
    """Certificate stages of reward models trained elsewhere. `answered`: on pairs of the base model's
    answers, if `demonstrate` makes some, and with these answers.
    """
    recipe = planner.recipe
    for name in sorted(names):
        stage, split = planner.source("reward_validation")
        options = {
            "validation": split,
            "certificate": plain(recipe.models[name].certificate or {}),
            **(
                {"verified_by": plain(recipe.demonstrate.annotate)} if answered and recipe.demonstrate else {}
            ),
        }
        inputs = {"model": planner.models[name], "data": stage}
        if answered:
            inputs["answers"] = "demonstrated"
        planner.certificates[name] = planner.add(
            f"certified_{name}", "certify", "certificate", options, inputs, certifies=name
        )


def _evaluation(planner: Planner) -> None:
    """The answers of each arm, then their evaluation."""
    recipe = planner.recipe
    assert recipe.evaluate is not None
    standard = {
        "base": planner.models["policy"],
        "initial": planner.initial,
        "policy": planner.policy,
    }
    planned = arms(recipe)
    answers: dict[str, str] = {}
    for name, arm in planned.items():
        if arm.merged:
            parts = {one: standard.get(one) or planner.models[one] for one in arm.merged}
            planner.models[arm.model] = planner.add(
                arm.model, "merge", "weights", {"weights": arm.merged}, parts, heavy=False, part="evaluate"
            )
            planner.policies.add(arm.model)
        model = standard.get(arm.model) or planner.models[arm.model]
        same = next((answers[other] for other, one in planned.items() if other in answers and one == arm), "")
        answers[name] = same or _answers(planner, name, arm, model, standard)
    models = {name: stage for name, stage in planner.models.items() if name not in ("policy", "encoder")}
    inputs = {
        **standard,
        "data": planner.curated,
        **{name: stage for name, stage in models.items() if name not in planner.policies},
        **{arm.model: planner.models[arm.model] for arm in planned.values() if arm.model not in standard},
        **{f"answers_{name}": stage for name, stage in answers.items()},
        **planner.named(recipe.evaluate.metrics),
        **planner.named(recipe.evaluate.measures, slot="measure"),
        **{f"{name}_certificate": stage for name, stage in planner.certificates.items()},
        **planner.gold,
        **({"encoder": planner.models["encoder"]} if "encoder" in planner.models else {}),
        **{f"round_{i}": stage for i, (stage, _) in enumerate(planner.rounds, 1)},
        **{f"scored_{i}": scored for i, (_, scored) in enumerate(planner.rounds, 1) if scored},
    }
    options = {
        **plain(recipe.evaluate),
        "arms": plain(planned),
        "named": recipe.evaluate.arms is not None,
        "reward_models": scoring_models(recipe),
        "gates": plain(recipe.register.gates) if recipe.register else {},
        "recipe": recipe.name,
        "about": recipe.about,
        "resolved": plain(recipe),
    }
    planner.add("evaluate", "evaluate", "report", options, inputs, part="evaluate")


def _answers(planner: Planner, name: str, arm: PlannedArm, model: str, standard: Mapping[str, str]) -> str:
    """The stage with the answers of an arm. Its key depends only on what determines the answers, so that
    every recipe with an equal arm shares it.
    """
    recipe = planner.recipe
    assert recipe.evaluate is not None
    others = {key: stage for key, stage in standard.items() if key != "policy"}
    inputs = {"policy": model, "data": planner.curated}
    inputs |= planner.named([arm.rollout], slot="rollout", **others)
    options = {
        "data": arm.data,
        "prompts": recipe.evaluate.prompts,
        "rollout": arm.rollout,
        "seed": arm.seed,
    }
    if arm.best_of:
        inputs |= planner.named(arm.best_of.annotate, **others)
        used = reward_models(arm.best_of.annotate) & set(scoring_models(recipe))
        options |= {"best_of": plain(arm.best_of), "certified": sorted(used)}
    return planner.add(f"answers_{name}", "answers", "groups", options, inputs, part="evaluate")
