"""Static checks of a recipe, without importing torch: columns are written before they are read, gates are
measured, sizes are possible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.evaluation.measured import ENDS, measured, per_prompt_metrics
from ratchet.components.recipes.arms import arms
from ratchet.components.recipes.changed_rounds import with_rounds
from ratchet.components.recipes.check_arms import check_evaluation, check_gates
from ratchet.components.recipes.check_data import check_kinds, check_splits
from ratchet.components.recipes.check_families import check_family
from ratchet.components.recipes.check_independent import check_held_out, check_independent
from ratchet.components.recipes.check_models import check_model, prompt_tokens
from ratchet.components.recipes.check_phases import check_phase_names, check_phases
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.reward_models import (
    before_answers,
    certified,
    optimised_models,
    trained_reward_models,
)
from ratchet.components.recipes.schema import Online, Recipe
from ratchet.components.recipes.schema_claim import START


def check(recipe: Recipe, rounds: Mapping[str, Mapping[str, Online]]) -> None:
    """Check the column dataflow through every phase of a resolved recipe. `rounds`: by the path of an online
    phase, the section of each round that changes it, by its path. `RecipeError` for the first problem.
    """
    _check_names(
        {
            "name": recipe.name,
            **{f"models.{n}": n for n in recipe.models},
            **({"register.model": recipe.register.model} if recipe.register else {}),
        }
    )
    if "policy" not in recipe.models:
        raise RecipeError(
            f"models: needs 'policy', the model to train; got {', '.join(recipe.models) or 'none'}"
        )
    if not all(one.source for one in recipe.data.every_source):
        raise RecipeError("data: needs 'source', the address of the data, e.g. path:conversations.jsonl")
    if recipe.evaluate and recipe.evaluate.gold and "encoder" not in recipe.models:
        raise RecipeError(
            "evaluate.gold: the gold measure needs a sentence encoder, but models.encoder is not set; "
            "add it, or set evaluate.gold to false"
        )
    check_family(recipe)
    check_phase_names(recipe)
    check_splits(recipe)
    check_kinds(recipe)
    check_model(recipe, recipe.models["policy"].shape or {}, "models.policy.shape")
    _check_reward_models(recipe)
    known = check_phases(recipe, rounds)
    check_evaluation(recipe, known)
    for where, section in with_rounds(recipe):
        watches = isinstance(section, Online) and section.watch.gold is True
        if watches and not (recipe.evaluate and recipe.evaluate.gold):
            raise RecipeError(f"{where}.watch.gold: needs a gold measure; set `evaluate.gold: true`")
    check_gates(recipe)
    check_held_out(recipe)
    check_independent(recipe)
    _check_claim(recipe)
    if recipe.register and (score := recipe.register.champion.score):
        scores = [
            "length",
            *(
                name.removeprefix("final.")
                for name in measured(recipe)
                if re.match(r"final\.(gold$|reward\.)", name)
            ),
        ]
        if score not in scores:
            raise RecipeError(
                f"register.champion.score: no per-prompt score {score!r}{nearest(score, scores)}"
            )


def _check_claim(recipe: Recipe) -> None:
    """The claim's metric is one that the evaluation writes, or without the phase whose policy is called SFT
    a comparison with that. Names in training logs are known after a run only.
    """
    if recipe.claim is None or recipe.claim.per == "curve":
        return
    metrics, metric = measured(recipe), recipe.claim.metric
    known = per_prompt_metrics(recipe) if recipe.claim.per == "prompt" else metrics
    base, _, end = metric.rpartition(".")
    if not {metric, f"{metric}_base"} & {*known} and not (
        recipe.claim.per == "seed" and end in ENDS and metrics.get(base)
    ):
        each = f" for each {recipe.claim.per}"
        raise RecipeError(
            f"claim.metric: the evaluation of this recipe has no such metric{each}{nearest(metric, known)}"
        )
    if START in recipe.claim.baselines and f"{metric.removeprefix('final.')}_gain_vs_base" not in metrics:
        scores = [
            f"final.{name.removesuffix('_gain_vs_base')}"
            for name in metrics
            if name.endswith("_gain_vs_base")
        ]
        raise RecipeError(
            f"claim.metric: expected the score of every answer with `against: {START}` "
            f"({', '.join(scores) or 'this recipe has none; add one to evaluate.metrics'}), got {metric!r}"
        )


def check_window(recipe: Recipe, profile: Profile) -> None:
    """The longest prompt and answer, in training and in evaluation, must fit vLLM's max_model_len."""
    if profile.engine != "vllm":
        return
    asked = [
        (f"{where}.rollout", section.data, rollout)
        for where, section in with_rounds(recipe)
        if (rollout := getattr(section, "rollout", None)) is not None
    ]
    own = recipe.evaluate.arms or {} if recipe.evaluate else {}
    asked += [
        (
            f"evaluate.arms.{name}.rollout" if name in own and own[name].rollout else "evaluate",
            arm.data,
            arm.rollout,
        )
        for name, arm in arms(recipe).items()
    ]
    for where, data, rollout in asked:
        key = "max_length" if "max_length" in rollout else "max_tokens"
        prompt, answer = prompt_tokens(recipe, data), rollout.get(key, 0)
        if prompt is not None and prompt + answer > profile.vllm.max_model_len:
            raise RecipeError(
                f"profile {profile.name}: vllm.max_model_len: {profile.vllm.max_model_len} tokens, "
                f"but the longest prompt (data.{data}.max_tokens: {prompt}) and answer "
                f"({where}.{key}: {answer}) have "
                f"{prompt + answer}; raise max_model_len or lower these"
            )


def _check_names(names: Mapping[str, str]) -> None:
    """Names that become file or folder names must not contain path separators."""
    for where, name in names.items():
        if not re.fullmatch(r"\w[\w .+-]{0,99}", str(name)):
            raise RecipeError(
                f"{where}: {name!r} becomes a folder name; use letters, digits, spaces and _ . + - only, "
                "starting with a letter or digit, at most 100 characters"
            )


def _check_reward_models(recipe: Recipe) -> None:
    """Reward models in `models` that training optimises are declared as such, and there are pairs to certify
    them on.
    """
    for name in trained_reward_models(recipe):
        if name in recipe.models:
            raise RecipeError(
                f"models.{name}: the section `reward` or a phase trains a reward model of that name; rename "
                "this one, or set the other to null"
            )
    for name in sorted(optimised_models(recipe) & set(recipe.models)):
        if recipe.models[name].role != "reward":
            raise RecipeError(
                f"models.{name}.role: training optimises this model's scores, so it needs a certificate; "
                "set `role: reward`"
            )
    first = before_answers(recipe)
    for name, source in recipe.models.items():
        if source.certificate is not None and source.role != "reward":
            raise RecipeError(
                f"models.{name}.certificate: only reward models have certificates; set `role: reward`"
            )
        limits, made = source.certificate, recipe.demonstrate
        if (
            limits is not None
            and limits.best_of_n_rises
            and (name in first or not made or made.rollout.get("responses_per_prompt", 1) < 2)
        ):
            raise RecipeError(
                f"models.{name}.certificate.best_of_n_rises: expected a `demonstrate` section with "
                "rollout.responses_per_prompt of at "
                "least 2, whose answers a verifier scores, to measure best of n; add one, or remove the limit"
            )
    splits = recipe.data.splits
    for name in sorted(certified(recipe)):
        if (
            (name in first or not (recipe.demonstrate and recipe.demonstrate.reward))
            and splits
            and "reward_validation" not in splits
        ):
            raise RecipeError(
                f"models.{name}: no held-out pairs to certify this reward model; expected "
                "`reward_validation` in "
                f"data.splits, got {', '.join(splits)}. Add it with a share"
                + ("" if name in first and recipe.demonstrate else ", or make pairs with demonstrate.reward")
            )
