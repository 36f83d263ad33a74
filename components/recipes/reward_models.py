"""Reward models of a recipe by role: trained by it, optimised against, certified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.piece import describe
from ratchet.components.recipes.arms import arms
from ratchet.components.recipes.changed_rounds import with_rounds
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.schema import Online, Recipe, Reward
from ratchet.components.training.reward_columns import reward_columns


def reward_models(annotators: Sequence[Mapping[str, Any]]) -> set[str]:
    """Models whose scores enter the rewards of these annotators."""
    return {
        model
        for spec in annotators
        if reward_columns([spec])
        for model in describe("annotate", spec["name"]).named("models", spec)
    }


def optimised_models(recipe: Recipe) -> set[str]:
    """Reward models that training or decoding optimises against: whose scores choose, weigh or shape what a
    phase, one of its rounds or further roles learns, or choose what is decoded (best of n, `transfer_q`).
    """
    parts = [section for _, section in with_rounds(recipe) if not isinstance(section, Reward)]
    roles = [role for part in parts if isinstance(part, Online) for role in part.roles.values()]
    best = [arm.best_of for arm in arms(recipe).values() if arm.best_of]
    return reward_models(
        [
            spec
            for part in (*parts, *roles, *best)
            for slot in ("annotate", "prepare", "fresh")
            for spec in getattr(part, slot, ())
        ]
        + [spec for part in (*parts, *arms(recipe).values()) for spec in _decoded(part)]
    )


def _decoded(part: Any) -> list[Mapping[str, Any]]:
    """Rewards by which the rollout of a phase or an arm chooses what it decodes."""
    if not (rollout := getattr(part, "rollout", None)):
        return []
    options = describe("rollout", rollout["name"]).options.values()
    return [rollout[one.name] for one in options if one.nested == "annotate"]


def not_required(recipe: Recipe) -> list[str]:
    """Reward models that training or best-of-n decoding optimises against, though their accuracy is not
    required (`certificate.min_accuracy: null`): they may be no better than chance.
    """
    limits = {name: source.certificate for name, source in recipe.models.items() if source.certificate}
    limits |= {
        model: one.section.certificate
        for one in sections(recipe)
        if isinstance(one.section, Reward)
        for model in one.models
    }
    optimised = optimised_models(recipe)
    return [name for name, bounds in limits.items() if name in optimised and bounds.min_accuracy is None]


def certified(recipe: Recipe) -> set[str]:
    """Reward models in `models` that need a certificate: those optimised against; all of them in a recipe
    without training and evaluation.
    """
    declared = {name for name, source in recipe.models.items() if source.role == "reward"}
    uses = recipe.evaluate or any(one.trains_policy and one.where != "sft" for one in sections(recipe))
    return declared & optimised_models(recipe) if uses else declared


def before_answers(recipe: Recipe) -> set[str]:
    """Those of `certified` whose certificate cannot be measured on the answers that `demonstrate` samples:
    they score these answers, or there are none.
    """
    names = certified(recipe)
    return names & reward_models(recipe.demonstrate.annotate) if recipe.demonstrate else names


def trained_reward_models(recipe: Recipe) -> list[str]:
    """Reward models that the recipe trains, by the names that pieces use."""
    return [model for one in sections(recipe) if isinstance(one.section, Reward) for model in one.models]


def scoring_models(recipe: Recipe) -> list[str]:
    """Reward models that an evaluation scores with, besides its metrics: those trained or certified by the
    recipe.
    """
    return [*trained_reward_models(recipe), *sorted(certified(recipe))]
