"""Static checks that what decides on a result is independent of its training: reward models that training
optimised, and splits that it read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ratchet.components.errors import RecipeError
from ratchet.components.piece import describe
from ratchet.components.recipes.arms import arms, final_arm, key_of, label_of
from ratchet.components.recipes.check_arms import NUMBERS
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.read_splits import splits_read
from ratchet.components.recipes.reward_models import optimised_models
from ratchet.components.recipes.schema import Recipe, Spec
from ratchet.components.training.reward_columns import reward_columns


def check_independent(recipe: Recipe) -> None:
    """No reward model that training optimised may decide that the result is good: neither in a gate with a
    lower bound, nor as the champion's score. Verifiers may (their scores are ground truth), and so may upper
    bounds on a gap.
    """
    if recipe.register is None or recipe.evaluate is None:
        return
    score, gates = recipe.register.champion.score, recipe.register.gates
    for name, (model, metrics) in learned_scores(recipe).items():
        names = re.compile(rf"({metrics})(\.\w+)?")
        wrong = [
            f"gates.{gate}"
            for gate, limits in gates.items()
            if names.fullmatch(gate) and limits is not None and limits.over is not None
        ]
        wrong += ["champion.score"] if score == name else []
        if wrong:
            raise RecipeError(
                f"register.{wrong[0]}: the policy is optimised against the reward model {model!r}, so its "
                "score rises whether or not the "
                "answers improve; use a metric that training did not optimise, such as a verifier, "
                "another reward model or the gold measure"
            )


def learned_scores(recipe: Recipe) -> dict[str, tuple[str, str]]:
    """By name the scores, measures and reports of the evaluation that show what an optimised reward model
    says and nothing that it does not: the model, and a pattern of the metrics that come of it. A measure such
    as the accuracy of the reward model reads a verifier too, and is none of these.
    """
    assert recipe.evaluate is not None
    optimised = optimised_models(recipe)
    learned: dict[str, str] = {f"reward.{model}": model for model in optimised}
    independent = {"gold"}
    for spec in recipe.evaluate.metrics:
        piece = describe("annotate", spec["name"])
        named = sorted(piece.named("models", spec) & optimised)
        model = named[0] if named else _only(set(piece.named("reads", spec)), learned, independent)
        for column in reward_columns([spec]):
            if model:
                learned[column] = model
            elif column not in learned:
                independent.add(column)
    found = {
        column: (
            model,
            rf"[a-z]\w*\.{re.escape(column)}|{re.escape(column)}_gain_vs_\w+"
            rf"|win_rate_{re.escape(column.removeprefix('reward.'))}(_lc)?_vs_\w+",
        )
        for column, model in learned.items()
    }
    for spec in recipe.evaluate.measures:
        reads = set(describe("measure", spec["name"]).named("reads", spec))
        if model := _only(reads, learned, independent):
            label = label_of(spec)
            learned[label] = model
            found[label] = (model, rf"[a-z]\w*\.{label}|{label}_vs_\w+")
    for spec in recipe.evaluate.reports:
        if model := _only(_numbers(spec), learned, independent):
            found[label_of(spec)] = (model, label_of(spec))
    return found


def _only(reads: set[str], learned: Mapping[str, str], independent: set[str]) -> str:
    """The model of the learned scores among `reads`; empty if there are none, or an independent one too."""
    return "" if reads & independent else next((learned[name] for name in sorted(reads & set(learned))), "")


def _numbers(spec: Spec) -> set[str]:
    """The scores and measures that a report names."""
    piece = describe("report", spec["name"])
    return {str(spec.get(key, piece.options[key].default)) for key in NUMBERS if key in piece.options}


def check_held_out(recipe: Recipe) -> None:
    """What is validated on is not what is trained on, and a recipe that registers its model does not train
    or select on the prompts that its gates and the comparison with the champion read.
    """
    for phase in sections(recipe):
        section = phase.section
        held_out, also = getattr(section, "validation", None), getattr(section, "also", "")
        read = {"data": getattr(section, "data", None), **({"also": also} if also else {})}
        for key, name in read.items():
            if name == held_out:
                raise RecipeError(
                    f"{phase.where}.validation: got {held_out!r}, which {phase.where}.{key} trains on; "
                    "expected held-out groups, such as "
                    f"the split '{name}_validation', or `validation` in the phase that makes them"
                )
        if also and also == read["data"]:
            raise RecipeError(
                f"{phase.where}.also: got {also!r}, which is {phase.where}.data already; name another "
                "split, or leave it out"
            )
    if recipe.register and (seen := _seen(recipe, _deciding(recipe))):
        raise RecipeError(f"{seen}; what gates and champions are judged by must be held out")


def prompts_seen(recipe: Recipe) -> list[str]:
    """A warning if training reads prompts that the evaluation asks."""
    seen = _seen(recipe, {arm.data for arm in arms(recipe).values()})
    return [f"{seen}; the results are not of held-out prompts"] if seen else []


def _deciding(recipe: Recipe) -> set[str]:
    """Splits of the arms that gates read and that is compared with the champion."""
    planned = arms(recipe)
    if not planned or recipe.register is None:
        return set()
    named = [re.split(r"\.|_vs_", gate) for gate in recipe.register.gates]
    words = {word for parts in named for word in parts}
    return {
        arm.data
        for name, arm in planned.items()
        if name == final_arm(planned) or words & {name, key_of(name)}
    }


def _seen(recipe: Recipe, splits: set[str]) -> str:
    """Which phase trains or is validated on one of these splits of prompts; empty if none is."""
    for where, name in splits_read(recipe).items():
        if name in splits and not where.startswith("evaluate."):
            return (
                f"{where}: got {name!r}, on which the policy is evaluated; expected another split, such "
                "as 'prompts', or another one in evaluate.data"
            )
    return ""
