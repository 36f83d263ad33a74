"""Recipes × seeds → one table with intervals: how a claim is checked.

Every arm runs with the same seeds; stages that arms share (data, SFT policy, reward model) are made once. A
metric is compared per seed and held-out prompt, so the difference of two arms is paired in both.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.evaluation.verdicts import crossed, decide
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.schema import Claim
from ratchet.components.storage.store import write_atomic
from ratchet.flows.claim_records import sentence
from ratchet.tasks.pipeline import Pipeline


def compare(
    recipes: Sequence[str],
    *,
    seeds: Sequence[int],
    home: Path,
    overrides: Sequence[str] = (),
    profile: str | None = None,
    metric: str = "win_rate",
    display: Any = None,
) -> dict[str, Any]:
    """Run every recipe with every seed and compare `metric`, a per-prompt list in the evaluation's results.

    Returns per arm the mean of each seed and of all with a 95 % interval, each arm's difference to the first,
    and what became of the recipes' claims about each other.
    """
    from ratchet.flows.post_training import post_training

    values: dict[str, np.ndarray] = {}
    for recipe in recipes:
        rows = []
        for seed in seeds:
            here = [*overrides, f"seed={seed}"]
            if display:
                display.console.print(f"{recipe}, seed {seed}", style="bold", highlight=False, markup=False)
            post_training(
                recipe, home=str(home), overrides=here, profile=profile, until="evaluate", display=display
            )
            pipeline = Pipeline.open(recipe, home=home, overrides=here, profile=profile)
            results = json.loads((pipeline.artifact("evaluate").path / "results.json").read_text())
            if metric not in results["per_prompt"]:
                raise RecipeError(
                    f"--metric: {recipe} measures no {metric!r} for each "
                    f"prompt{nearest(metric, results['per_prompt'])}"
                )
            rows.append(results["per_prompt"][metric])
        values[recipe] = np.asarray(rows, dtype=float)  # (seeds, prompts)
    first = recipes[0]
    table = {"metric": metric, "seeds": list(seeds), "arms": {}, "differences": {}, "claims": {}}
    for recipe, matrix in values.items():
        table["arms"][recipe] = {"by_seed": [float(v) for v in matrix.mean(1)], **interval(matrix)}
        if recipe != first:
            table["differences"][f"{first} - {recipe}"] = interval(values[first] - matrix)
        claim = load(recipe, overrides=overrides, profile=profile)[0].claim
        for baseline in claim.baselines if claim and claim.per == "prompt" and claim.metric == metric else ():
            if claim and baseline in values:
                one = dataclasses.replace(claim, against=baseline)
                table["claims"].setdefault(recipe, []).append(verdict(one, matrix - values[baseline]))
    write_atomic(home / "comparisons" / f"{'-vs-'.join(recipes)}.json", json.dumps(table, indent=1))
    return table


def verdict(claim: Claim, differences: np.ndarray) -> str:
    """What differences (seeds, prompts), own minus baseline, say of the claim."""
    seeds = len(differences)
    if seeds < claim.seeds:
        return f"{sentence(claim)}: undecided, the claim asks for {claim.seeds} seeds, these are {seeds}"
    return f"{sentence(claim)}: {decide(crossed(differences), claim.direction, claim.at_least)}"


def interval(matrix: np.ndarray) -> dict[str, float]:
    """Mean of (seeds, prompts) with a 95 % interval for new seeds and new prompts."""
    effect = crossed(matrix)
    return {"mean": effect.mean, "low": effect.low, "high": effect.high}
