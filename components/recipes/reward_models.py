"""The reward models of a recipe, and their roles: trained by it, optimised against, certified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.piece import describe
from ratchet.components.recipes.schema import Recipe
from ratchet.components.training.loop import reward_columns


def reward_models(annotators: Sequence[Mapping[str, Any]]) -> set[str]:
    """The models whose scores are in the rewards that annotators write."""
    return {model for spec in annotators if reward_columns([spec]) for model in describe("annotate", spec["name"]).named("models", spec)}


def optimised_models(recipe: Recipe) -> set[str]:
    """The reward models that training or best-of-n sampling of a recipe optimises against."""
    best_of = recipe.evaluate.best_of if recipe.evaluate else None
    return reward_models([spec for part in (recipe.offline, recipe.online, best_of) if part for spec in part.annotate])


def certified(recipe: Recipe) -> set[str]:
    """The reward models among `models` that need a certificate: those that are optimised against; all of them in a recipe that
    neither trains a policy nor evaluates one."""
    declared = {name for name, source in recipe.models.items() if source.role == "reward"}
    return declared & optimised_models(recipe) if recipe.online or recipe.offline or recipe.evaluate else declared


def judges_of(recipe: Recipe) -> list[str]:
    """The reward models that an evaluation asks besides its metrics: those trained by the recipe, and those certified by it."""
    return [*(recipe.reward.judges if recipe.reward else ()), *sorted(certified(recipe))]
