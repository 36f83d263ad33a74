"""Training data from the base model's own answers, on the tiny model: sampled, verified, selected, validated,
trained on.
"""

from __future__ import annotations

import statistics
from itertools import combinations
from pathlib import Path

import pytest

from ratchet.components.data.groups import read_groups
from ratchet.components.errors import ContractError, RecipeError
from ratchet.components.inference.torch import TorchEngine, weights_digest
from ratchet.components.pieces.rewards.reward_model import reward_model
from ratchet.components.recipes.recipe import load
from ratchet.components.types import Context
from ratchet.tasks.pipeline import Pipeline

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
  rollout: {name: sample, responses_per_prompt: 6, max_tokens: 16, temperature: 2.0}   # so that some answers to a prompt fail
  annotate: [{name: rewards.format, pattern: ".*[.!?]"}]
  sft: [{name: verified, reward: reward.format}]
  reward: [{name: best_worst, reward: reward.format}, {name: flip_labels, share: 0.0}]
sft:
  fit: {updates: {policy: [{name: likelihood, reduce: token_mean}]}, batch: 8, min_ended: 0.0}
reward:
  certificate: {min_accuracy: null}   # a few pairs of a tiny model show nothing
online:
  annotate: [{name: rewards.reward_model, model: reward_model}]
  select: [{name: best_worst, reward: reward.reward_model}]
  prepare: [{name: scoring.logprobs, model: reference}]
  fit: {updates: {policy: [{name: preference.dpo, beta: 0.1}]}}
"""  # noqa: E501


def recipe_file(folder: Path, text: str = RECIPE) -> Path:
    file = folder / "demonstrations.yaml"
    file.write_text(text)
    return file


def test_demonstrations_are_verified_answers_and_pairs_of_one_prompt(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.open(recipe_file(tmp_path), home=tiny_home, profile="test")
    pipeline.begin()
    for name in list(pipeline.stages)[: list(pipeline.stages).index("sft") + 1]:
        pipeline.make(name)
    folder = pipeline.artifact("demonstrations").path
    answers = {
        g.prompt.id: g for g in read_groups(pipeline.artifact("demonstrated").path / "answers.parquet")
    }
    demonstrations, pairs = read_groups(folder / "sft.parquet"), read_groups(folder / "reward.parquet")
    assert answers and demonstrations and pairs
    for group in demonstrations:
        (shown,) = group.trajectories
        assert shown.text.strip()[-1] in ".!?" and shown.text in [
            t.text for t in answers[group.prompt.id].trajectories
        ]
    for group in pairs:
        assert group.columns["reward.format"] == [1.0, 0.0]
    validation = {g.prompt.id for g in read_groups(folder / "sft_validation.parquet")}
    assert validation and not validation & set(answers)
    assert (folder / "validation.json").exists() and pipeline.artifact("sft").meta["counts"]["kept"] == len(
        demonstrations
    )
    counts = pipeline.artifact("demonstrated").meta["counts"]
    assert counts["sft: prompts without a verified answer"] == len(answers) - len(demonstrations)


def test_certificate_reports_best_of_n_and_a_failed_one_stops_before_sampling(
    tiny_home: Path, tmp_path: Path
) -> None:
    pipeline = Pipeline.open(
        recipe_file(tmp_path),
        home=tiny_home,
        profile="test",
        overrides=[
            "reward.certificate={min_accuracy: 0.99, best_of_n_rises: true}",
            "reward.fit.max_steps=2",
            "sft=null",
            "demonstrate.sft=[]",
        ],
    )
    pipeline.begin()
    for name in list(pipeline.stages)[: list(pipeline.stages).index("rollout_1")]:
        pipeline.make(name)
    certificate = pipeline.artifact("reward").meta["certificate"]
    answers = read_groups(pipeline.artifact("demonstrated").path / "answers_validation.parquet")
    answers = [g for g in answers if len(g.trajectories) == 6]
    scored = reward_model(
        answers, Context({"reward_model": TorchEngine(pipeline.artifact("reward").path, kind="reward")})
    )["reward.reward_model"]
    best = certificate["best_of_n"]
    assert list(best) == ["1", "2", "4", "rises"] and best["rises"]["mean"] == pytest.approx(
        best["4"]["mean"] - best["1"]["mean"]
    )
    by_hand = [
        statistics.fmean(
            g.columns["reward.format"][max(two, key=lambda i: row[i] if row[i] is not None else -9e9)]
            for two in combinations(range(6), 2)
        )
        for g, row in zip(answers, scored, strict=True)
    ]
    assert best["2"]["mean"] == pytest.approx(statistics.fmean(by_hand))
    with pytest.raises(ContractError, match=r"'reward_model'.*99\.0%"):
        pipeline.make("rollout_1")


PREFERENCES = (
    "data.splits={demonstrate: 0.2, demonstrate_validation: 0.1, preferences: 0.2, "
    "preferences_validation: 0.2, prompts: 0.2, evaluate: 0.1}",
    "preferences={rollout: {name: sample, responses_per_prompt: 6, max_tokens: 16, temperature: 2.0}, "
    "annotate: [{name: rewards.format, "
    "pattern: '.*[.!?]'}], select: [{name: best_worst, reward: reward.format}]}",
)


def test_preferences_are_pairs_of_the_sft_policys_answers(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.open(
        recipe_file(tmp_path),
        home=tiny_home,
        profile="test",
        overrides=[*PREFERENCES, "demonstrate.reward=[]"],
    )
    pipeline.begin()
    for name in list(pipeline.stages)[: list(pipeline.stages).index("reward") + 1]:
        pipeline.make(name)
    pairs = read_groups(pipeline.artifact("preferences").path / "reward.parquet")
    policy = weights_digest(pipeline.artifact("sft").path)
    assert pairs and {g.prompt.meta["pair"]["policy"] for g in pairs} == {policy}
    demonstrated = {
        g.prompt.id for g in read_groups(pipeline.artifact("demonstrated").path / "answers.parquet")
    }
    assert not demonstrated & {g.prompt.id for g in pairs}
    assert pipeline.artifact("reward").meta["counts"]["kept"] == len(pairs)


def test_base_model_pairs_train_but_do_not_certify_the_reward_model(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.open(
        recipe_file(tmp_path),
        home=tiny_home,
        profile="test",
        overrides=[*PREFERENCES, "reward.by_prompt=true", "reward.fit.batch=8", "reward.fit.epochs=1"],
    )
    pipeline.begin()
    for name in list(pipeline.stages)[: list(pipeline.stages).index("reward") + 1]:
        pipeline.make(name)
    own, base = (
        read_groups(pipeline.artifact(name).path / "reward.parquet")
        for name in ("preferences", "demonstrations")
    )
    reward_meta = pipeline.artifact("reward").meta
    assert (reward_meta["counts"]["kept"], reward_meta["counts"]["also kept"]) == (
        len(own),
        len(base),
    ) and min(len(own), len(base)) > 0
    assert reward_meta["steps"] == -(-len({g.prompt.id for g in [*own, *base]}) // 8)
    assert not (pipeline.artifact("demonstrations").path / "reward_validation.parquet").exists(), (
        "a split that nothing reads could stop the run"
    )
    assert reward_meta["certificate"]["pairs"] == len(
        read_groups(pipeline.artifact("preferences").path / "reward_validation.parquet")
    )


@pytest.mark.parametrize(
    ("more", "where"),
    [
        (("demonstrate.reward=[]", "reward=null", "online=null"), "preferences"),
        (("demonstrate.reward=[]", "reward.data=pairs"), "reward.data"),
        (("demonstrate.reward=[]", "preferences.data=pairs"), "preferences.data"),
    ],
)
def test_preferences_that_nothing_reads_or_makes_are_refused(
    more: tuple[str, ...], where: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=rf"^{where}"):
        load(recipe_file(tmp_path), overrides=[*PREFERENCES, *more])


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("demonstrate.sft=[]", "demonstrate.sft"),
        ("reward.data=prompts", "reward.data"),
        (
            "reward.certificate.min_accuracy_by_kind={contrast: 0.5}",
            r"reward\.certificate\.min_accuracy_by_kind",
        ),
        ("demonstrate.rollout.responses_per_prompt=1", r"demonstrate\.reward"),
        ("demonstrate.annotate=[]", "demonstrate.sft"),
        ("demonstrate.data=pairs", "demonstrate.data"),
    ],
)
def test_a_recipe_whose_demonstrations_nothing_makes_is_refused(
    change: str, where: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=rf"^{where}"):
        load(recipe_file(tmp_path), overrides=change.split(", "))
