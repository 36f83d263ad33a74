"""`keep_earlier`: pairs of earlier rounds are included once and scored by the current round's reference."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ratchet.components.data.groups import read_groups
from ratchet.components.inference.torch import TorchEngine
from ratchet.tasks.pipeline import Pipeline

RECIPE = """
schema: 1
base: online
about: three rounds that keep their pairs, rewarded by length
online:
  rounds: 3
  prompts_per_round: 8
  rollout: {name: sample, responses_per_prompt: 4, max_tokens: 24, temperature: 2.0}   # answers that differ, whatever this processor made of the model
  reference: previous
  keep_earlier: true
  annotate: [{name: rewards.length, target: 3}]
  select: [{name: best_worst, reward: reward.length}]
  prepare: [{name: scoring.logprobs, model: reference}]
  fit: {updates: {policy: [{name: preference.dpo}]}, learning_rate: 2.0e-3}
"""  # noqa: E501


@pytest.fixture(scope="module")
def pipeline(tiny_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    recipe = tmp_path_factory.mktemp("recipe") / "keeping.yaml"
    recipe.write_text(RECIPE)
    run = Pipeline.open(recipe, home=tiny_home, profile="test")
    for name in list(run.stages)[: list(run.stages).index("select_3") + 1]:
        run.make(name)
    return run


def test_pairs_of_earlier_rounds_occur_once(pipeline: Pipeline) -> None:
    chosen = {i: read_groups(pipeline.artifact(f"select_{i}").path / "groups.parquet") for i in (1, 2, 3)}
    made_in = {i: [g.prompt.meta["pair"]["round"] for g in groups] for i, groups in chosen.items()}
    own = {i: made_in[i].count(i) for i in made_in}
    assert all(own.values()) and made_in == {
        1: [1] * own[1],
        2: [1] * own[1] + [2] * own[2],
        3: [1] * own[1] + [2] * own[2] + [3] * own[3],
    }
    assert set(Counter(g.prompt.id for g in chosen[3]).values()) == {1}
    counts = pipeline.artifact("select_3").meta["counts"]
    assert (
        counts["groups of earlier rounds"] == own[1] + own[2] and counts["groups after best_worst"] == own[3]
    )


def test_earlier_pairs_are_scored_by_the_current_reference(pipeline: Pipeline) -> None:
    groups = read_groups(pipeline.artifact("select_3").path / "groups.parquet")

    def furthest(model: str) -> float:
        """The largest difference a step between the column and what the model says."""
        scored = TorchEngine(pipeline.artifact(model).path, threads=1).score(groups, frozenset({"logprobs"}))
        return max(
            abs(a - b)
            for g, row in zip(groups, scored, strict=True)
            for mine, theirs in zip(g.columns["logprobs.reference"], row["logprobs"], strict=True)
            for a, b in zip(mine, theirs, strict=True)
        )

    assert furthest("optimise_2") < 1e-4
    assert furthest("optimise_1") > 1e-2 and furthest("model_policy") > 1e-2, (
        "the rounds changed nothing: this test would see nothing"
    )
