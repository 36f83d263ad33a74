"""Names of the metrics that a recipe's evaluation will write, so that a gate on any other metric is rejected
before the run.
"""

from __future__ import annotations

from ratchet.components.piece import describe
from ratchet.components.recipes.phases import has_three_arms, initial_phase
from ratchet.components.recipes.reward_models import scoring_models
from ratchet.components.recipes.schema import Recipe

ENDS = ("mean", "low", "high", "n")
"""Fields of an interval, each a metric of its own: `win_rate_vs_sft.low`."""
OF_ANSWERS = (
    "length",
    "ended",
    "truncated",
    "failed",
    "empty",
    "refusal_like",
    "repetitive",
    "personal_data",
    "distinct_1",
    "distinct_2",
    "self_bleu",
)


def measured(recipe: Recipe) -> dict[str, bool]:
    """Name of each metric that `components/stages/evaluate.py` will write -> whether it has an interval."""
    if recipe.evaluate is None:
        return {}
    gold, fluent = recipe.evaluate.gold, bool(recipe.evaluate.perplexity_rows)
    three, changes = has_three_arms(recipe), initial_phase(recipe) is not None
    models = scoring_models(recipe)
    rewards = {
        column
        for spec in recipe.evaluate.metrics
        for column in describe("annotate", spec["name"]).named("writes", spec)
        if column.startswith("reward.") and not column.endswith(".status")
    } | {f"reward.{model}" for model in models}
    scores = {
        **({"gold": "win_rate"} if gold else {}),
        **{name: f"win_rate_{name.removeprefix('reward.')}" for name in sorted(rewards)},
    }
    measures = [spec["name"] for spec in recipe.evaluate.measures]
    found = dict.fromkeys((f"final.{name}" for name in (*OF_ANSWERS, *scores, *measures)), False)
    found |= {"final.embedding_spread": False} if "encoder" in recipe.models else {}
    found |= {"final.perplexity": False} if fluent else {}
    others = ("base", "sft") if three or (changes and recipe.evaluate.best_of) else ("base",)
    found |= dict.fromkeys(
        (f"{name}_vs_{other}" for other in others if measures for name in (*measures, "distinct_2_ratio")),
        True,
    )
    for other in others:
        found |= dict.fromkeys(
            (
                f"{name}_vs_{other}"
                for score, wins in scores.items()
                for name in (wins, f"{wins}_lc", f"{score}_gain")
            ),
            True,
        )
    if three:
        found |= {"kl_to_sft": False, "distinct_2_ratio": False, "length_ratio": False}
        found |= {"embedding_spread_ratio": False} if "encoder" in recipe.models else {}
        found |= {"perplexity_ratio": True} if fluent else {}
        found |= {"proxy_over_gold": True} if gold and models else {}
    return found
