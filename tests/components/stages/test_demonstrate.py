"""Data sets from the base model's own answers, over the tiny model: sampled, verified, selected, validated, learnt from."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.data.groups import read_groups
from components.errors import RecipeError
from components.recipe import load
from tasks.pipeline import Pipeline

RECIPE = """
schema: 1
base: online
about: Demonstrations and pairs of the tiny model's own answers.
data:
  splits: {demonstrate: 0.3, demonstrate_validation: 0.2, prompts: 0.3, evaluate: 0.2}
  min_groups: 1
  demonstrate: {transforms: [{name: subset, count: 30}]}
  demonstrate_validation: {transforms: [{name: subset, count: 20}]}
demonstrate:
  rollout: {name: sample, responses_per_prompt: 6, max_tokens: 16}
  annotate: [{name: rewards.format, pattern: ".*[.!?]"}]
  sft: [{name: verified, reward: reward.format}]
  reward: [{name: best_worst, reward: reward.format}, {name: flip_labels, share: 0.0}]
sft:
  fit: {updates: {policy: [{name: likelihood, reduce: token_mean}]}, batch: 8, min_ended: 0.0}
reward:
  certificate: {min_accuracy: 0.0}
"""


def recipe_file(folder: Path, text: str = RECIPE) -> Path:
    file = folder / "demonstrations.yaml"
    file.write_text(text)
    return file


def test_demonstrations_are_verified_answers_and_pairs_of_one_prompt(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.open(recipe_file(tmp_path), home=tiny_home, profile="test")
    pipeline.begin()
    for name in list(pipeline.stages)[: list(pipeline.stages).index("sft") + 1]:
        pipeline.make(name)
    made = pipeline.artifact("demonstrations").path
    answers = {g.prompt.id: g for g in read_groups(pipeline.artifact("demonstrated").path / "answers.parquet")}
    demonstrations, pairs = read_groups(made / "sft.parquet"), read_groups(made / "reward.parquet")
    assert len(answers) == 30 and demonstrations and pairs
    for group in demonstrations:
        (shown,) = group.trajectories
        assert shown.text.strip()[-1] in ".!?" and shown.text in [t.text for t in answers[group.prompt.id].trajectories]
    for group in pairs:
        assert group.columns["reward.format"] == [1.0, 0.0]
    validation = {g.prompt.id for g in read_groups(made / "sft_validation.parquet")}
    assert validation and not validation & set(answers)
    assert (made / "validation.json").exists() and pipeline.artifact("sft").meta["counts"]["kept"] == len(demonstrations)
    counts = pipeline.artifact("demonstrated").meta["counts"]
    assert counts["sft: prompts without a verified answer"] == 30 - len(demonstrations)


@pytest.mark.parametrize(("change", "where"), [
    ("demonstrate.sft=[]", "demonstrate.sft"), ("reward.data=prompts", "reward.data"),
    ("demonstrate.annotate=[]", "demonstrate.sft"), ("demonstrate.data=pairs", "demonstrate.data"),
])
def test_a_recipe_whose_demonstrations_nothing_makes_is_refused(change: str, where: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=rf"^{where}"):
        load(recipe_file(tmp_path), overrides=[change])
