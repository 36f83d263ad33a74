"""Arms of an evaluation: models that answer held-out prompts, each with a rollout on a split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.components.piece import describe, resolve
from ratchet.components.recipes.phases import has_three_arms, initial_phase, sections
from ratchet.components.recipes.schema import Recipe
from ratchet.components.recipes.schema_evaluation import Arm, BestOf, Evaluate

TITLES = {"base": "base", "initial": "SFT", "policy": "final"}
"""Display names of the arms of the short spelling."""
KEYS = {"initial": "sft"}
"""Names of arms in metrics (`win_rate_vs_sft`) where they differ from the arm's."""
SHARED = ("responses_per_prompt", "max_tokens", "temperature")
"""Options of `evaluate` that apply to each arm whose rollout does not set them."""


@dataclass(frozen=True)
class PlannedArm:
    """An arm with every value filled in. `model`: `base`, `initial`, `policy`, the name of a model or phase,
    or `merged_ARM`, the weighted mean of the models in `merged`; `data`: split of its prompts.
    """

    model: str
    rollout: Mapping[str, Any]
    data: str
    best_of: BestOf | None
    seed: int
    merged: Mapping[str, float] | None = None


def arms(recipe: Recipe) -> dict[str, PlannedArm]:
    """The arms of a recipe's evaluation by name; without `evaluate.arms`: base model, initial policy (called
    SFT) and final policy, as far as they differ.
    """
    section = recipe.evaluate
    if section is None:
        return {}
    seed = recipe.seed if section.seed is None else section.seed
    chosen = _short(recipe, section) if section.arms is None else section.arms
    return {
        name: PlannedArm(
            arm.model if isinstance(arm.model, str) else f"merged_{name}",
            rollout_of(section, arm, f"evaluate.arms.{name}.rollout"),
            arm.data or section.data,
            arm.best_of,
            seed if arm.seed is None else arm.seed,
            None if isinstance(arm.model, str) else arm.model,
        )
        for name, arm in chosen.items()
    }


def rollout_of(section: Evaluate, arm: Arm, where: str) -> dict[str, Any]:
    """The rollout of an arm, or else of the evaluation, with all options; those that it does not set are the
    evaluation's (`SHARED`), then the piece's.
    """
    given = {"name": "sample", **(arm.rollout or section.rollout or {})}
    options = describe("rollout", given["name"], where=where).options
    shared = {key: getattr(section, key) for key in SHARED if key in options}
    return resolve("rollout", {**shared, **given}, where=where)


def _short(recipe: Recipe, section: Evaluate) -> dict[str, Arm]:
    differs = has_three_arms(recipe) or (section.best_of is not None and initial_phase(recipe) is not None)
    names = ("base", "initial", "policy") if differs else ("base", "policy")
    return {name: Arm(model=name, best_of=section.best_of if name == "policy" else None) for name in names}


def final_arm(names: Iterable[str]) -> str:
    """The arm that the results are about: `policy`, else the last one."""
    return "policy" if "policy" in (found := list(names)) else found[-1]


def other_policy(recipe: Recipe) -> str:
    """The final arm, if its model is not the policy that the recipe trains last and registers; else empty.
    Only arms that the recipe names can be of another model.
    """
    own = recipe.evaluate.arms if recipe.evaluate else None
    trained = [phase.known_as for phase in sections(recipe) if phase.advances]
    if not own or not trained or own[final := final_arm(own)].model in ("policy", trained[-1]):
        return ""
    return final


def contrasts(splits: Mapping[str, str]) -> dict[str, list[str]]:
    """From arm -> split: on each split the arm that is compared (`policy`, else the last) -> the others.

    >>> contrasts({"base": "evaluate", "hot": "evaluate", "policy": "evaluate"})
    {'policy': ['base', 'hot']}
    """
    found = {}
    for split in dict.fromkeys(splits.values()):
        members = [name for name, own in splits.items() if own == split]
        first = final_arm(members)
        found[first] = [name for name in members if name != first]
    return found


def title_of(arm: str) -> str:
    """Display name of an arm."""
    return TITLES.get(arm, arm.replace("_", " "))


def key_of(arm: str) -> str:
    """Name of an arm in metrics that compare with it: `win_rate_vs_sft`."""
    return KEYS.get(arm, arm)


def label_of(measure: Mapping[str, Any]) -> str:
    """Name of a measure in the results: its label, else the piece's name."""
    return measure.get("label", measure["name"])
