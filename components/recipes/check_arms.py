"""Static checks of the evaluation: arms name models, phases and splits that exist, gates name its metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.evaluation.measured import BUILT_IN, ENDS, measured, scores_and_measures
from ratchet.components.piece import describe
from ratchet.components.recipes.arms import arms, key_of, label_of, other_policy
from ratchet.components.recipes.check_sections import check_absolute, check_piece
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.schema import Recipe, Spec

STANDARD = {"base", "initial", "policy"}
"""Models of an evaluation that every recipe has: `models.policy`, initial policy, final policy."""
ARMS, NUMBERS = ("arm", "other", "third", "arms"), ("measure", "of", "to")
"""Options of reports that name arms, and numbers of arms."""
TAKEN = {"final", "sft", "reward", "gold", "details", "spent"}
"""Words that begin or end the names of other metrics."""


def check_evaluation(recipe: Recipe, known: set[str]) -> None:
    """Arms, metrics, measures and best-of-n decoding. `known`: models of the recipe and its phases.
    `RecipeError` for the first problem.
    """
    if recipe.evaluate is None:
        return
    models = (known | STANDARD) - {"reference", "encoder"}
    if recipe.evaluate.arms is not None:
        _check_own_arms(recipe)
    for name, arm in arms(recipe).items():
        at = "evaluate" if recipe.evaluate.arms is None else f"evaluate.arms.{name}"
        check_piece("rollout", arm.rollout, set(), models, f"{at}.rollout")
        if arm.best_of:
            _columns(arm.best_of.annotate, models, f"{at}.best_of.annotate")
    have = _columns(recipe.evaluate.metrics, models, "evaluate.metrics")
    check_absolute(recipe.evaluate.metrics, "evaluate.metrics")
    for spec in recipe.evaluate.measures:
        check_piece("measure", spec, have, (known | STANDARD) - {"reference"}, "evaluate.measures")
    _check_labels(recipe.evaluate.measures, "measures")
    for i, spec in enumerate(recipe.evaluate.reports):
        _check_report(recipe, spec, f"evaluate.reports[{i}]")
    _check_labels(recipe.evaluate.reports, "reports")


def _check_labels(specs: Sequence[Spec], key: str) -> None:
    """Each measure or report has a name of its own. A measure may have the name of a number that every
    evaluation has, if that is the piece's (`personal_data`, which says the same).
    """
    labels: set[str] = set()
    for spec in specs:
        if (label := label_of(spec)) in labels:
            raise RecipeError(f"evaluate.{key}: two {key} are called {label!r}; give each its own `label`")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", str(label)):
            raise RecipeError(
                f"evaluate.{key}: expected a label of lower-case letters, digits and _, got {label!r}"
            )
        taken = label in {*BUILT_IN, *TAKEN} or re.search(r"_vs_|^win_rate", label)
        if taken and label != spec["name"]:
            raise RecipeError(
                f"evaluate.{key}: {label!r} is, or is part of, the name of another metric; give this one "
                "another label"
            )
        labels.add(label)


def _check_report(recipe: Recipe, spec: Spec, where: str) -> None:
    """The options in `ARMS` name arms, those in `NUMBERS` scores and measures that every arm has."""
    check_piece("report", spec, set(), set(), where)
    planned, compared = arms(recipe), set[str]()
    numbers = scores_and_measures(recipe)
    for options, kind, known in ((ARMS, "arm", set(planned)), (NUMBERS, "measure or metric", numbers)):
        for option in options:
            names = spec.get(option) or ()
            names = [names] if isinstance(names, str) else names
            compared |= {*names} if kind == "arm" else set()
            for name in names:
                if name not in known:
                    raise RecipeError(f"{where}.{option}: no {kind} named {name!r}{nearest(name, known)}")
    splits = sorted({planned[name].data for name in compared or planned})
    if describe("report", spec["name"]).compares and len(splits) > 1:
        raise RecipeError(
            f"{where}: {spec['name']!r} compares answers to the same prompts; expected arms on one split, "
            f"got {', '.join(splits)}"
        )


def _columns(annotators: Sequence[Spec], models: set[str], where: str) -> set[str]:
    have: set[str] = set()
    for spec in annotators:
        have = check_piece("annotate", spec, have, models, where)
    return have


def _check_own_arms(recipe: Recipe) -> None:
    assert recipe.evaluate is not None and recipe.evaluate.arms is not None
    if not recipe.evaluate.arms:
        raise RecipeError("evaluate.arms: expected at least one arm; null means base, SFT and final policy")
    if recipe.evaluate.best_of:
        raise RecipeError(
            "evaluate.best_of: with `evaluate.arms`, best-of-n decoding belongs to an arm; move it to "
            "evaluate.arms.NAME.best_of"
        )
    policies = STANDARD | {
        name for name, model in recipe.models.items() if name != "encoder" and not model.role
    }
    policies |= {name for phase in sections(recipe) if phase.trains_policy for name in phase.models}
    for name, arm in recipe.evaluate.arms.items():
        at = f"evaluate.arms.{name}"
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
            raise RecipeError(f"{at}: expected a name of lower-case letters, digits and _, got {name!r}")
        if name in TAKEN or re.search(r"_vs_|_lc$", name):
            raise RecipeError(f"{at}: {name!r} is part of the names of other metrics; rename this arm")
        for model in [arm.model] if isinstance(arm.model, str) else arm.model:
            if model not in policies:
                raise RecipeError(
                    f"{at}.model: no model or phase with a policy named {model!r}{nearest(model, policies)}"
                )
        if not isinstance(arm.model, str) and abs(sum(arm.model.values()) - 1) > 1e-6:
            raise RecipeError(
                f"{at}.model: expected weights that add up to 1, got {sum(arm.model.values()):g}"
            )
        if arm.best_of and "responses_per_prompt" not in arms(recipe)[name].rollout:
            raise RecipeError(
                f"{at}.best_of: needs a rollout with the option responses_per_prompt, such as `sample`"
            )


def check_gates(recipe: Recipe) -> None:
    """Every gate sets a bound on a metric of this recipe's evaluation. The gates and the champion's score are
    about the policy that is registered.
    """
    gates = recipe.register.gates if recipe.register else {}
    if gates and recipe.evaluate is None:
        raise RecipeError("register.gates: gates need an `evaluate` section; add one, or remove the gates")
    metrics, whole = measured(recipe), _whole(recipe)
    for name, gate in gates.items():
        at = f"register.gates.{name}"
        if gate.over is None and gate.below is None:
            raise RecipeError(f"{at}: sets no bound; write `over: <number>` or `below: <number>`")
        if gate.over is not None and gate.below is not None and gate.over >= gate.below:
            raise RecipeError(
                f"{at}: cannot pass: nothing is over {gate.over:g} and below {gate.below:g}; write bounds in "
                "order, as `{over: -0.1, below: 0.1}`"
            )
        base, _, end = name.rpartition(".")
        if name not in metrics and not (end in ENDS and metrics.get(base)):
            raise RecipeError(
                f"{at}: {_no_arm(recipe, name)}the evaluation of this recipe has no such metric (null "
                f"removes the gate){nearest(name, metrics)}"
            )
        if gate.interval and not metrics.get(name):
            raise RecipeError(f"{at}: this metric has no interval; remove `interval`")
        if gate.interval and name.partition("_vs_")[0] in whole:
            raise RecipeError(
                f"{at}: this measure is one number of all answers, of which prompts give no interval; remove "
                "`interval`, or compare recipes over seeds"
            )
    if recipe.register and (gates or recipe.register.champion.score) and (arm := other_policy(recipe)):
        raise RecipeError(
            f"evaluate.arms.{arm}: the gates and the champion are decided by this arm, which is not of the "
            "policy that is registered; name the arm of `model: policy` `policy`, or put it last"
        )


def _whole(recipe: Recipe) -> set[str]:
    """Labels of the measures that are one number of all answers, and of the reports that read one."""
    section = recipe.evaluate
    if section is None:
        return set()
    measures = {label_of(spec) for spec in section.measures if describe("measure", spec["name"]).whole}
    read = [spec for spec in section.reports if measures & {spec.get(key) for key in NUMBERS}]
    return measures | {label_of(spec) for spec in read}


def _no_arm(recipe: Recipe, metric: str) -> str:
    """Why a metric does not exist, if it is of an arm that does not."""
    if recipe.evaluate is None or recipe.evaluate.arms is None:
        return ""
    named = list(recipe.evaluate.arms)
    against = re.search(r"_vs_(\w+)", metric)
    arm = against[1] if against else metric.partition(".")[0] if "." in metric else ""
    known = ["final", *named, *map(key_of, named)]
    return f"no arm {arm!r} ({', '.join(named)}); " if arm and arm not in known else ""
