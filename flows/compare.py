"""Recipes × seeds → one table with intervals.

Every arm runs with the same seeds; stages that arms share (data, SFT policy, reward model) are made once. A
metric is compared per seed and held-out prompt, so the difference of two arms is paired in both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.evaluation.measured import per_prompt_metrics
from ratchet.components.evaluation.verdicts import crossed
from ratchet.components.recipes.schema import Recipe
from ratchet.components.storage.store import digest, write_atomic
from ratchet.flows.claim_values import held_out
from ratchet.tasks.pipeline import Pipeline

if TYPE_CHECKING:
    from ratchet.flows.display import Display

LONGEST = 100
"""Characters of the name of a comparison's file, before a digest."""


def compare(
    recipes: Sequence[str],
    metric: str,
    seeds: Sequence[int],
    home: Path,
    display: Display,
    *,
    overrides: Sequence[str] = (),
    profile: str | None = None,
) -> dict[str, Any]:
    """Run every recipe with every seed and compare `metric` (see `metric_of`), a per-prompt list in the
    evaluation's results. `RecipeError` as soon as two recipes turn out to be evaluated on different prompts.

    Returns per arm the mean of each seed and of all with a 95 % interval, and each arm's difference to the
    first. What recipes claim is checked by `ratchet claims`.
    """
    from ratchet.flows.post_training import post_training

    first, rows = recipes[0], {recipe: list[list[float]]() for recipe in recipes}
    for seed in seeds:
        prompts = None
        for recipe in recipes:
            here = [*overrides, f"seed={seed}"]
            display.console.print(f"{recipe}, seed {seed}", style="bold", markup=False)
            post_training(
                recipe, home=str(home), overrides=here, profile=profile, until="evaluate", display=display
            )
            pipeline = Pipeline.open(recipe, home=home, overrides=here, profile=profile)
            results = json.loads((pipeline.artifact("evaluate").path / "results.json").read_text())
            prompts, own = prompts or held_out(results, pipeline), held_out(results, pipeline)
            if own != prompts:
                raise RecipeError(
                    f"{first} and {recipe} were evaluated on different prompts with seed {seed}, which "
                    "cannot be paired; give both the same `data` and `evaluate.prompts`"
                )
            rows[recipe].append(results["per_prompt"][metric])
    values = {recipe: np.asarray(lists, dtype=float) for recipe, lists in rows.items()}  # (seeds, prompts)
    table = {"metric": metric, "seeds": list(seeds), "arms": {}, "differences": {}}
    for recipe, matrix in values.items():
        table["arms"][recipe] = {"by_seed": [float(v) for v in matrix.mean(1)], **interval(matrix)}
        if recipe != first:
            table["differences"][f"{first} - {recipe}"] = interval(values[first] - matrix)
    name = "-vs-".join(Path(recipe).stem for recipe in recipes)
    name = name if len(name) <= LONGEST else f"{name[:LONGEST]}-{digest(list(recipes))[:8]}"
    write_atomic(home / "comparisons" / f"{name}.json", json.dumps(table, indent=1))
    return table


def metric_of(recipes: Mapping[str, Recipe], metric: str | None) -> str:
    """The per-prompt metric to compare: `metric`, or that of a claim of one recipe about another, or the
    first that all measure. `RecipeError` if a recipe's evaluation does not measure it.
    """
    for name, recipe in recipes.items():
        if recipe.evaluate is None:
            raise RecipeError(f"{name} has no evaluation to compare; add an `evaluate` section")
    measured = {name: per_prompt_metrics(recipe) for name, recipe in recipes.items()}
    if metric is None:
        claims = [recipe.claim for recipe in recipes.values() if recipe.claim]
        claimed = [c.metric for c in claims if c.per == "prompt" and recipes.keys() & set(c.baselines)]
        shared = [one for one in next(iter(measured.values())) if all(one in m for m in measured.values())]
        if not (claimed or shared):
            raise RecipeError(
                f"{', '.join(recipes)} measure no per-prompt metric in common; give each the same "
                "evaluate.metrics or evaluate.measures"
            )
        metric = (claimed or shared)[0]
    for name, known in measured.items():
        if metric not in known:
            raise RecipeError(
                f"--metric: {name} measures no {metric!r} for each prompt{nearest(metric, known)}"
            )
    return metric


def interval(matrix: np.ndarray) -> dict[str, float]:
    """Mean of (seeds, prompts) with a 95 % interval for new seeds and new prompts."""
    effect = crossed(matrix)
    return {"mean": effect.mean, "low": effect.low, "high": effect.high}
