"""Names of the metrics that a recipe's evaluation will write, so that a gate on any other metric is rejected
before the run.
"""

from __future__ import annotations

from ratchet.components.piece import describe
from ratchet.components.recipes.arms import arms, contrasts, final_arm, key_of, label_of
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
BUILT_IN = (
    *OF_ANSWERS,
    "perplexity",
    "embedding_spread",
    "gold_gain",
    "proxy_over_gold",
    "kl_to_sft",
    *(f"{name}_ratio" for name in ("perplexity", "distinct_2", "length", "embedding_spread")),
)
"""Numbers of arms and contrasts that no measure or report may overwrite."""
WHOLE = (*OF_ANSWERS, "embedding_spread", "perplexity")
"""Metrics of all answers together, not of each prompt."""


def measured(recipe: Recipe) -> dict[str, bool]:
    """Name of each metric that `components/stages/evaluate.py` will write -> whether it has an interval."""
    section = recipe.evaluate
    if section is None:
        return {}
    gold, fluent, encodes = section.gold, bool(section.perplexity_rows), "encoder" in recipe.models
    scores = {
        **({"gold": "win_rate"} if gold else {}),
        **{name: f"win_rate_{name.removeprefix('reward.')}" for name in sorted(_rewards(recipe))},
    }
    measures = [label_of(spec) for spec in section.measures]
    single = [*OF_ANSWERS, *scores, *measures]
    single += [*(["embedding_spread"] if encodes else []), *(["perplexity"] if fluent else [])]
    planned = arms(recipe)
    final = final_arm(planned)
    pairs = contrasts({name: arm.data for name, arm in planned.items()})
    prefixes = ("final", *(planned if section.arms is not None else ()))
    found = {f"{prefix}.{name}": False for prefix in prefixes for name in single}
    for other in [key_of(name) for others in pairs.values() for name in others]:
        against = [*measures, *(["distinct_2_ratio"] if measures else [])]
        against += [name for score, wins in scores.items() for name in (wins, f"{wins}_lc", f"{score}_gain")]
        found |= {f"{name}_vs_{other}": True for name in against}
    found |= {label_of(spec): True for spec in section.reports}
    if "initial" in pairs[final]:
        found |= {"distinct_2_ratio": False, "length_ratio": False}
        sampled = "logprobs.sampled" in describe("rollout", planned[final].rollout["name"]).writes
        found |= {"kl_to_sft": False} if sampled else {}
        found |= {"embedding_spread_ratio": False} if encodes else {}
        found |= {"perplexity_ratio": True} if fluent else {}
        found |= {"proxy_over_gold": True} if gold and scoring_models(recipe) else {}
    return found


def per_prompt_metrics(recipe: Recipe) -> list[str]:
    """Names of the per-prompt lists that the evaluation writes: the win rate by the gold measure, scores,
    measures, then other win rates and gains.
    """
    planned = arms(recipe) if recipe.evaluate else {}
    labels = {label_of(spec) for spec in (recipe.evaluate.measures if recipe.evaluate else ())}
    names, whole = [], {*WHOLE} - labels
    for name, has_interval in measured(recipe).items():
        stem, _, against = name.rpartition("_vs_")
        if not has_interval and name.partition(".")[0] in ("final", *planned):
            names += [name] if name.partition(".")[2] not in whole else []
        elif stem.endswith("_gain") or (stem.startswith("win_rate") and not stem.endswith("_lc")):
            names.append(stem if against == "sft" else f"{stem}_{against}")
    return sorted(names, key=lambda name: (name != "win_rate", name.partition(".")[2] in WHOLE))


def scores_and_measures(recipe: Recipe) -> set[str]:
    """Numbers that the evaluation has for every answer of every arm."""
    section = recipe.evaluate
    if section is None:
        return set()
    gold = {"gold"} if section.gold else set[str]()
    return {*gold, *_rewards(recipe), *(label_of(spec) for spec in section.measures)}


def _rewards(recipe: Recipe) -> set[str]:
    """Reward columns of the metrics and of the reward models that score."""
    specs = recipe.evaluate.metrics if recipe.evaluate else ()
    return {
        column
        for spec in specs
        for column in describe("annotate", spec["name"]).named("writes", spec)
        if column.startswith("reward.") and not column.endswith(".status")
    } | {f"reward.{model}" for model in scoring_models(recipe)}
