"""Models that a stage gives to its pieces, and those it refuses."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import ContractError, DataError
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models import products
from ratchet.components.models.load import load_tokenizer, new_reward, save_model
from ratchet.components.pieces.rewards.reward_model import reward_model
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile
from ratchet.components.stages import shards
from ratchet.components.stages.experience import context_of, select
from ratchet.components.stages.job import Job, run_job
from ratchet.components.storage.store import Workspace
from ratchet.components.training import rounds
from ratchet.components.training.round_metrics import round_metrics
from ratchet.components.types import Artifact, Context, Group, Prompt, Trajectory
from ratchet.tasks.pipeline import Pipeline


@pytest.mark.parametrize("kind", ["ours", "transformers"])
def test_additional_reward_model_is_measured_and_not_optimised(
    kind: str, tiny_model: Path, tmp_path: Path
) -> None:
    if kind == "ours":
        save_model(new_reward(tiny_model, layers=1, pool="mean"), load_tokenizer(tiny_model), tmp_path)
    else:
        AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1).save_pretrained(tmp_path)
        load_tokenizer(tiny_model).save_pretrained(tmp_path)
    job = Job(
        {"profile": plain(Profile(threads=1)), "seed": 0},
        {"safety": Artifact("weights", tmp_path, "k")},
        Workspace(tmp_path / "work"),
    )
    group = Group(
        Prompt("p", ({"role": "user", "content": "hi"},)),
        (Trajectory(({"role": "assistant", "content": "Hello!"},)),),
    )
    columns = reward_model([group], context_of(job, certified=False), model="safety")
    assert isinstance(columns["reward.safety"][0][0], float) and columns["reward.safety.status"] == [["ok"]]
    with pytest.raises(ContractError, match=r"'safety'.*certificate"):
        reward_model([group], context_of(job), model="safety")


def test_first_round_has_zero_kl_to_the_initial_policy(tiny_home: Path) -> None:
    """Round 1 records KL 0 without computing it, round 2 computes it."""
    pipeline = Pipeline.open(
        "raft",
        home=tiny_home,
        profile="test",
        overrides=[
            "online.watch={kl_prompts: 4}",
            "online.prompts_per_round=8",
            "online.fit.learning_rate=1e-2",
            "online.rounds=2",
        ],
    )
    for name in list(pipeline.stages)[: list(pipeline.stages).index("annotate_2") + 1]:
        pipeline.make(name)
    first, second = (pipeline.artifact(f"annotate_{i}").meta["round_metrics"] for i in (1, 2))
    assert first["kl"] == 0.0 and abs(second["kl"]) > 1e-3
    initial = TorchEngine(pipeline.artifact("model_policy").path, threads=1)
    groups = read_groups(pipeline.artifact("annotate_1").path / "groups.parquet")
    assert abs(round_metrics(groups, [], reference=initial, kl_prompts=4)["kl"]) < 1e-4, (
        "asked, the same weights say the same"
    )


def test_answers_that_a_selector_wrote_are_tokenised_before_they_are_scored(
    tiny_model: Path, tmp_path: Path
) -> None:
    """As `echo` does in a round: the rejected answer is text without tokens; the sampled one keeps its
    tokens.
    """
    prompt = Prompt("p", ({"role": "user", "content": "hi"},))
    engine = TorchEngine(tiny_model, threads=1)
    written = Trajectory(({"role": "assistant", "content": "Say hi."},))
    (sampled,) = engine.encode(
        Group(prompt, (Trajectory(({"role": "assistant", "content": "Hello!"},)),))
    ).trajectories
    (tmp_path / "scored").mkdir()
    write_groups(tmp_path / "scored" / "groups.parquet", [Group(prompt, (sampled, written))])
    work = Workspace(tmp_path / "work")
    work.product.mkdir(parents=True)
    options = {
        "profile": plain(Profile(threads=1)),
        "seed": 0,
        "round": 1,
        "select": (),
        "prepare": ({"name": "scoring.logprobs", "model": "reference"},),
    }
    model = Artifact("weights", tiny_model, "k")
    select(
        Job(
            options,
            {"groups": Artifact("groups", tmp_path / "scored", "g"), "policy": model, "reference": model},
            work,
        )
    )
    (group,) = read_groups(work.product / "groups.parquet")
    assert list(group.trajectories[0].inputs["tokens"]) == list(sampled.inputs["tokens"])
    (expected,) = engine.score([group], frozenset({"logprobs"}))
    assert [len(row) for row in group.columns["logprobs.reference"]] == [
        len(t.mask) for t in group.trajectories
    ]
    assert group.columns["logprobs.reference"][1] == pytest.approx(expected["logprobs"][1], abs=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_stage_multiplies_in_the_precision_of_its_profile(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "has_bfloat16", lambda: True)
    (tmp_path / "product").mkdir()
    request = {
        "does": "annotate",
        "options": {"profile": plain(Profile(threads=1, precision=precision))},
        "inputs": {},
        "work": str(tmp_path),
    }
    found = run_job(lambda job: {"mixed": products.MIXED}, request)
    assert found["mixed"] is (precision == "bfloat16") and not products.MIXED


def test_memory_is_that_of_this_machine_and_processor_time_that_of_all(tmp_path: Path) -> None:
    """5 seconds and 9 TB of an engine elsewhere, 7 seconds and 1 TB of one here."""
    (tmp_path / "product").mkdir()
    options = {"profile": plain(Profile(threads=1))}
    request = {"does": "annotate", "options": options, "inputs": {}, "work": str(tmp_path)}

    def stage(job: Job) -> None:
        assert shards._shards is not None
        shards._shards.usage |= {("elsewhere", 1): (5.0, 9e12), (socket.gethostname(), 1): (7.0, 1e12)}

    spent = run_job(stage, request)["spent"]
    assert 12 <= spent["cpu_seconds"] < 20 and 1000 < spent["peak_gb"] < 1100


def test_a_large_rollout_is_sampled_in_blocks_with_the_same_answers(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven prompts of four answers of eight tokens, at most 64 tokens at a time: four calls, not one."""
    prompts = [Prompt(f"p{i}", ({"role": "user", "content": f"hi {i}"},)) for i in range(7)]
    spec = {"name": "sample", "responses_per_prompt": 4, "max_tokens": 8}
    options = {"rollout": spec, "prompts": {"name": "uniform"}, "prompts_per_round": 7}
    engine, calls = TorchEngine(tiny_model, threads=1), []
    monkeypatch.setattr(
        engine, "generate", lambda requests, g=engine.generate: calls.append(1) or g(requests)
    )
    built, context = rounds.Pieces(options), Context(seed=0, round=1, models={"policy": engine})
    whole = rounds.sample_to(tmp_path / "whole.parquet", prompts, built, options, context)
    assert len(calls) == 1 and whole == rounds.sample(prompts, built, options, context)
    calls.clear()
    monkeypatch.setattr(rounds, "SAMPLED", 64)
    blocks = rounds.sample_to(tmp_path / "blocks.parquet", prompts, built, options, context)
    assert len(calls) == 4
    for a, b in zip(whole, blocks, strict=True):
        assert [t.inputs for t in a.trajectories] == [t.inputs for t in b.trajectories]
    with pytest.raises(DataError, match="7 of 8 prompts"):
        short = {**options, "prompts_per_round": 8}
        rounds.sample_to(tmp_path / "short.parquet", prompts, built, short, context)
