"""Recipes × seeds → one table with intervals: how a claim is checked.

Every arm runs with the same seeds; stages that arms share (data, SFT policy, reward model) are made once. A
metric is compared per seed and held-out prompt, so the difference of two arms is paired in both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.schema import Claim
from ratchet.components.storage.store import write_atomic
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
        if claim is not None and claim.metric == metric and claim.against in values:
            table["claims"][recipe] = verdict(claim, interval(matrix - values[claim.against]), len(seeds))
    write_atomic(home / "comparisons" / f"{'-vs-'.join(recipes)}.json", json.dumps(table, indent=1))
    return table


def verdict(claim: Claim, difference: Mapping[str, float], seeds: int) -> str:
    """What `difference`, own minus baseline with its interval, says of the claim: shown, refuted, or not
    decided.
    """
    sign = 1.0 if claim.direction == "higher" else -1.0
    low, high = sorted((sign * difference["low"], sign * difference["high"]))
    promised = f"{claim.metric} {claim.direction} than {claim.against}" + (
        f" by more than {claim.at_least:g}" if claim.at_least else ""
    )
    if seeds < claim.seeds:
        return f"{promised}: not decided, the claim asks for {claim.seeds} seeds, these are {seeds}"
    if low > claim.at_least:
        return f"{promised}: shown"
    return f"{promised}: {'refuted' if high < claim.at_least else 'not shown, the interval holds both'}"


def interval(matrix: np.ndarray, *, draws: int = 10_000, seed: int = 0) -> dict[str, float]:
    """Mean of (seeds, prompts) with a 95 % bootstrap interval that draws seeds and, within them, prompts
    anew.

    Drawing both says how far the result would move with other seeds and other prompts. With n seeds the
    spread between seeds is underestimated by (n - 1) / n, as in any plain bootstrap of few units.
    """
    rng = np.random.default_rng(seed)
    count, prompts = matrix.shape
    rows = rng.integers(0, count, (draws, count))
    columns = rng.integers(0, prompts, (draws, prompts))
    means = np.stack([matrix[r][:, c].mean() for r, c in zip(rows, columns, strict=True)])
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": float(matrix.mean()), "low": float(low), "high": float(high)}
