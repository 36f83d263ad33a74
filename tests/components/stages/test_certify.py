"""External reward models: scores as published, certified on the recipe's pairs before use."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from typer.testing import CliRunner

from ratchet.components.errors import ContractError, RecipeError, SourceError
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.load import load_tokenizer
from ratchet.components.pieces.rewards.reward_model import reward_model
from ratchet.components.recipes.check import check
from ratchet.components.recipes.recipe import load
from ratchet.components.types import Context, Group, Prompt, Trajectory
from ratchet.flows.cli import app
from ratchet.tasks.pipeline import Pipeline

RECIPE = """
schema: 1
base: online
about: Online DPO against a reward model of one's own.
models:
  mine: {{source: "path:{path}", role: reward, certificate: {{min_accuracy: {floor}}}}}
reward: null
online:
  annotate: [{{name: rewards.reward_model, model: mine}}]
  select: [{{name: best_worst, reward: reward.mine}}]
  prepare: [{{name: scoring.logprobs, model: reference}}]
  rounds: 1
  prompts_per_round: 4
  fit: {{updates: {{policy: [{{name: preference.dpo, beta: 0.1}}]}}}}
evaluate: {{prompts: 4}}
"""


@pytest.fixture(scope="module")
def published(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random sequence classifier as published on a hub: pad token is eos, no files of this project."""
    path = tmp_path_factory.mktemp("published")
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
    with torch.no_grad():
        model.score.weight.normal_()
    model.save_pretrained(path)
    tokenizer = load_tokenizer(tiny_model)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(path)
    return path


def recipe(folder: Path, path: Path, floor: str = "null", **_: str) -> Path:
    file = folder / "mine.yaml"
    file.write_text(RECIPE.format(path=path, floor=floor))
    return file


def completed(pipeline: Pipeline, until: str) -> Pipeline:
    pipeline.begin()
    for name in list(pipeline.stages)[: list(pipeline.stages).index(until) + 1]:
        pipeline.make(name)
    return pipeline


def test_a_published_reward_model_scores_as_transformers_does_and_is_optimised_against(
    published: Path, tiny_home: Path, tmp_path: Path
) -> None:
    pipeline = completed(
        Pipeline.open(recipe(tmp_path, published), home=tiny_home, profile="test"), "annotate_1"
    )
    certificate = pipeline.artifact("certified_mine").meta["certificate"]
    assert (
        certificate["passed"]
        and certificate["pairs"] > 50
        and "accuracy was not required" in certificate["notes"][0]
    )
    assert certificate["reload_difference"] < 1e-4, "the loop's engine against transformers alone"
    messages = [
        {"role": "user", "content": "do you like dogs?"},
        {"role": "assistant", "content": "Yes, I like dogs a lot."},
    ]
    group = Group(Prompt("p", tuple(messages[:1])), (Trajectory(tuple(messages[1:])),))
    engine = TorchEngine(pipeline.artifact("model_mine").path, kind="reward", threads=1)
    ours = reward_model([group], Context({"mine": engine}), model="mine")["reward.mine"][0][0]
    inputs = AutoTokenizer.from_pretrained(published).apply_chat_template(
        messages, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        theirs = AutoModelForSequenceClassification.from_pretrained(published)(**inputs).logits[0, 0].item()
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_reward_model_not_above_chance_is_refused_before_sampling(
    published: Path, tiny_home: Path, tmp_path: Path
) -> None:
    pipeline = completed(
        Pipeline.open(recipe(tmp_path, published, "0.99"), home=tiny_home, profile="test"), "certified_mine"
    )
    with pytest.raises(ContractError, match=r"'mine'.*99\.0%"):
        pipeline.make("rollout_1")


def test_a_product_of_an_earlier_run_is_a_source(tiny_home: Path, tmp_path: Path) -> None:
    first = Pipeline.open(
        "reward_model",
        home=tiny_home,
        profile="test",
        overrides=["reward.limit=48", "reward.limit_validation=24", "reward.certificate.min_accuracy=null"],
    )
    product = completed(first, "reward").artifact("reward").path
    second = completed(
        Pipeline.open(recipe(tmp_path, product), home=tiny_home, profile="test"), "certified_mine"
    )
    again = second.artifact("model_mine")
    assert (
        json.loads((again.path / "manifest.json").read_text())["stage"] == "model_mine"
        and not (again.path / "published_reward_model.txt").exists()
    )
    assert second.artifact("certified_mine").meta["certificate"]["reload_difference"] < 1e-4


def test_other_models_are_refused_at_download(tiny_model: Path, tiny_home: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.open(recipe(tmp_path, tiny_model), home=tiny_home, profile="test")
    with pytest.raises(SourceError, match="`role: reward`"):
        completed(pipeline, "model_mine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("models.mine.role=null", r"models\.mine\.role: training optimises this model"),
        (
            "models.mine.certificate.best_of_n_rises=true",
            r"models\.mine\.certificate\.best_of_n_rises: expected a `demonstrate` section",
        ),
    ],
)
def test_recipe_without_certification_pairs_is_refused(change: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        load(recipe(tmp_path, tmp_path), overrides=[change])


def test_certify_command(published: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"question {i} about {thing}?", "chosen": f"Yes, I like {thing}.", "rejected": f"No {i}."}
        for i, thing in enumerate(["music", "films", "books", "dogs", "rain", "tea"] * 4)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [
        "certify",
        str(published),
        "--data",
        str(tmp_path / "pairs.jsonl"),
        "--home",
        str(tmp_path / "home"),
        "--profile",
        "test",
    ]
    failed = CliRunner().invoke(app, [*arguments, "--limit", "min_accuracy=0.99"])
    assert (
        failed.exit_code == 1
        and "failed: right on" in failed.output
        and "expected a lower bound" in failed.output
    )
    passed = CliRunner().invoke(app, [*arguments, "--limit", "min_accuracy=null"])
    assert passed.exit_code == 0 and "passed: right on" in passed.output


def test_a_recipe_without_held_out_pairs_is_refused_at_once(tmp_path: Path) -> None:
    whole, _ = load(recipe(tmp_path, tmp_path))
    with pytest.raises(RecipeError, match=r"models\.mine: .*`reward_validation`"):
        check(
            dataclasses.replace(
                whole,
                data=dataclasses.replace(whole.data, splits={"reward": 0.5, "prompts": 0.3, "evaluate": 0.2}),
            ),
            {},
        )
