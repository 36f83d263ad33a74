"""Static checks of recipes whose policy acts on observations instead of reading and writing text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.piece import catalogue, describe
from ratchet.components.recipes.arms import arms
from ratchet.components.recipes.changed_rounds import with_rounds
from ratchet.components.recipes.families import MODELS, family_of, new_family
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.schema import Learn, Recipe


def policy_family(recipe: Recipe) -> dict[str, Any] | None:
    """Spec of the family of the recipe's policy; None for a language model."""
    source = recipe.models["policy"].source
    if source.startswith("path:"):
        return family_of(Path.cwd() / source.removeprefix("path:"))
    try:
        found = new_family(source, "models.policy.source")
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError(f"models.policy.source: {source!r}: expected a whole number: {error}") from None
    return found[0] if found else None


def check_family(recipe: Recipe) -> None:
    """Rollouts produce what the policy reads (tokens or arrays), and a policy of arrays trains nothing that
    needs text. `RecipeError` for the first problem.
    """
    family = policy_family(recipe)
    payload = "arrays" if family else "tokens"
    what = f"of the family {family['name']!r}" if family else "a language model"
    for where, rollout in _rollouts(recipe):
        known = describe("rollout", rollout["name"], where=where).options.values()
        made = "arrays" if any(option.nested == "array_environment" for option in known) else "tokens"
        if made != payload:
            raise RecipeError(
                f"{where}: {rollout['name']!r} makes trajectories of {made}, but models.policy is {what}, "
                f"with steps of {payload}; "
                + (
                    "use a rollout such as `control`"
                    if family
                    else "use a model such as generate:gaussian?observation=3&action=1 with `format: new`"
                    + nearest(urlsplit(recipe.models["policy"].source).path, catalogue("family"))
                )
            )
    if family:
        _check_arrays(recipe, what)


def _rollouts(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Every rollout with its path in the recipe."""
    for where, section in with_rounds(recipe):
        if rollout := getattr(section, "rollout", None):
            yield f"{where}.rollout", rollout
    for name, arm in arms(recipe).items() if recipe.evaluate else ():
        yield f"evaluate.arms.{name}.rollout" if recipe.evaluate.arms else "evaluate.rollout", arm.rollout  # pyright: ignore[reportOptionalMemberAccess]


def _check_arrays(recipe: Recipe, what: str) -> None:
    """Sections that need a tokenizer, or transformers' models."""
    made: set[str] = set()
    for phase in sections(recipe):
        section, where = phase.section, phase.where
        if isinstance(section, Learn) and section.data not in made:
            raise RecipeError(
                f"{where}.data: {section.data!r} holds texts, but models.policy is {what}; train on the "
                "groups of an earlier phase, such as one with the rollout `control.expert`"
            )
        made |= set(phase.makes)
        fit = getattr(section, "fit", None)
        if fit is not None and fit.adapter["name"] != "full":
            raise RecipeError(
                f"{where}.fit.adapter: expected `full`, since models.policy is {what}, got "
                f"{fit.adapter['name']!r}"
            )
        for spec in [spec for specs in fit.updates.values() for spec in specs] if fit else ():
            if describe("objective", spec["name"]).readers:
                raise RecipeError(
                    f"{where}.fit.updates: {spec['name']!r} reads the hidden states of a language model, but "
                    f"models.policy is {what}"
                )
    if recipe.evaluate and recipe.evaluate.perplexity_rows:
        raise RecipeError(
            f"evaluate.perplexity_rows: got {recipe.evaluate.perplexity_rows}, but models.policy is {what} "
            "and has no perplexity; set it to 0"
        )
    if recipe.register:
        raise RecipeError(
            f"register: models are registered with their tokenizer, but models.policy is {what}; set it to "
            "null"
        )


def check_backends(recipe: Recipe, profile: Profile) -> None:
    """Policies of arrays need `engine: torch` and `learner: torch`, vision-language policies `engine: torch`.
    `RecipeError` for other profiles.
    """
    if "policy" not in recipe.models:
        return
    if profile.engine != "torch" and _is_vision_language(recipe.models["policy"].source):
        raise RecipeError(
            f"profile {profile.name}: `engine: {profile.engine}`, but models.policy is a vision-language "
            "model, which needs `engine: torch`"
        )
    if not (family := policy_family(recipe)):
        return
    for key, got in (("engine", profile.engine), ("learner", profile.learner)):
        if got != "torch":
            raise RecipeError(
                f"profile {profile.name}: `{key}: {got}`, but models.policy is of the family "
                f"{family['name']!r}, which needs `{key}: torch`"
            )


def _is_vision_language(source: str) -> bool:
    """Whether a model address is known to be that of a vision-language model."""
    if not source.startswith("path:"):
        return source.startswith("generate:tiny_vision")
    file = Path.cwd() / source.removeprefix("path:") / "config.json"
    return file.is_file() and json.loads(file.read_text()).get("model_type") in MODELS
