"""Over-optimisation is provoked and detected: a length-biased reward rises while the gold score falls."""

from __future__ import annotations

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


def pipeline_of(folder: Path, home: Path, *overrides: str) -> Pipeline:
    (folder / "hacked.yaml").write_text(RECIPE)
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
