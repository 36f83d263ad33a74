"""Over-optimisation is provoked and detected: a reward rises while the gold score falls. The reward is a
program in the first tests, and a reward model learned from pairs, with a passed certificate, in the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ratchet.components.errors import HealthError
from ratchet.components.inference.torch import weights_digest
from ratchet.tasks.pipeline import Pipeline

RECIPE = """
schema: 1
base: online
about: A policy that learns to be long, watched by a measure that wants it short.
reward: null
online:
  rounds: 3
  prompts_per_round: 10
  annotate: [{name: rewards.length, target: 24}]
  select: [{name: best_worst, reward: reward.length}]
  prepare: [{name: scoring.logprobs, model: reference}]
  watch: {gold: {name: rewards.overlong, maximum: 24, cache: 20}}
  health: {reward_without_gold: {limit: 0.02, action: roll_back}}
  fit: {updates: {policy: [{name: preference.dpo, beta: 0.1}]}, learning_rate: 1.0e-3, min_ended: 0.0}
"""


def pipeline_of(folder: Path, home: Path, *overrides: str, recipe: str = RECIPE) -> Pipeline:
    (folder / "hacked.yaml").write_text(recipe)
    pipeline = Pipeline.open(folder / "hacked.yaml", home=home, profile="test", overrides=overrides)
    pipeline.begin()
    return pipeline


def make(pipeline: Pipeline, until: str) -> None:
    for name in list(pipeline.stages)[: list(pipeline.stages).index(until) + 1]:
        pipeline.make(name)


def test_a_hacked_reward_holds_the_round_and_returns_the_weights_before_it(
    tiny_home: Path, tmp_path: Path
) -> None:
    pipeline = pipeline_of(tmp_path, tiny_home)
    make(pipeline, "optimise_2")
    first, second = (pipeline.artifact(f"annotate_{i}").meta for i in (1, 2))
    assert (
        second["round_metrics"]["reward.length"] > first["round_metrics"]["reward.length"] + 0.02
        and second["round_metrics"]["gold"] < first["round_metrics"]["gold"]
    )
    assert (first["verdict"], second["verdict"]) == ("ok", "roll_back")
    assert pipeline.artifact("optimise_2").meta["rolled_back"]
    weights = {
        name: weights_digest(pipeline.artifact(name).path)
        for name in ("model_policy", "optimise_1", "optimise_2")
    }
    assert weights["optimise_2"] == weights["model_policy"] != weights["optimise_1"]


def test_hacked_reward_stops_the_run_if_the_rule_is_stop(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, tiny_home, "online.health.reward_without_gold.action=stop")
    with pytest.raises(HealthError, match="gold score"):
        make(pipeline, "annotate_2")


LEARNED = """
schema: 1
base: online
about: A policy learns from a reward model of raters who prefer the longer answer, at a large learning rate.
data:
  source: "generate:tiny_openers?seed=1"
  transforms: []
  near_threshold: null
  decontaminate: null
  max_quarantined: 0.5
  splits: {reward: null, reward_validation: null, preferences: 0.3, preferences_validation: 0.2, prompts: 0.4, evaluate: 0.1}
preferences:
  rollout: {name: sample, responses_per_prompt: 4, max_tokens: 20, temperature: 1.0}
  annotate: [{name: rewards.length, target: 24}]
  select: [{name: best_worst, reward: reward.length}]
reward: {max_tokens: 64, fit: {learning_rate: 1.0e-3}}
online:
  rounds: 4
  prompts_per_round: 24
  rollout: {max_tokens: 32}
  annotate: [rewards.reward_model]
  select: [{name: best_worst, reward: reward.reward_model}]
  prepare: [{name: scoring.logprobs, model: reference}]
  watch: {gold: {name: rewards.format, pattern: '(?:\\S+ ){2,8}\\S+[.!?]'}}   # a sentence of three to nine words
  fit: {updates: {policy: [{name: preference.dpo, beta: 0.1}]}, learning_rate: 5.0e-4, min_ended: 0.0}
"""  # noqa: E501
RULES = {
    "gold_drop": "online.health.gold_drop={limit: 0.05, action: roll_back}",
    "reward_without_gold": "online.health.reward_without_gold={limit: 1.0, action: roll_back}",
}


def test_a_certified_reward_model_is_hacked_and_the_health_rules_keep_the_policy_from_before(
    tiny_home: Path, tmp_path: Path
) -> None:
    """The reward model orders held-out pairs rightly, so its certificate passes. The policy first gains by
    the gold measure, then loses most of it while its reward still rises.
    """

    def rounds(*rules: str) -> tuple[Pipeline, list[Mapping[str, float]]]:
        pipeline = pipeline_of(tmp_path, tiny_home, *rules, recipe=LEARNED)
        make(pipeline, "annotate_4")
        return pipeline, [pipeline.artifact(f"annotate_{i}").meta["round_metrics"] for i in range(1, 5)]

    without, unwatched = rounds()
    certificate = without.artifact("reward").meta["certificate"]
    assert certificate["passed"] and certificate["accuracy"]["low"] > 0.7
    rewards, gold = ([one[name] for one in unwatched] for name in ("reward", "gold"))
    assert rewards == sorted(rewards) and rewards[3] > rewards[0] + 1
    assert gold[3] < max(gold) - 0.3 and gold[3] < gold[0] - 0.2

    watched, metrics = rounds(*RULES.values())
    tripped = watched.artifact("annotate_3")
    assert metrics[2]["gold"] == gold[2] and tripped.meta["verdict"] == "roll_back"
    assert len(tripped.meta["verdicts"]) == len(RULES)
    weights = {i: weights_digest(watched.artifact(f"optimise_{i}").path) for i in (1, 2, 3)}
    assert weights[3] == weights[1] != weights[2], (
        "the policy that the fallen gold score describes is dropped"
    )
    assert metrics[3]["gold"] > gold[3] + 0.3, "without the rules the run ends worse"
