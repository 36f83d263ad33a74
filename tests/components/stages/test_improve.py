"""Online training per step: state of pieces is in the checkpoint, and resume is bit-identical."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from ratchet.components.data.groups import read_groups
from ratchet.components.errors import DataError, TrainingError
from ratchet.components.inference import choose
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.stages import improve as stage
from ratchet.components.stages.run import as_request, execute
from ratchet.components.storage.checkpoints import latest
from ratchet.components.storage.state import load_state, save_state
from ratchet.components.storage.store import file_digest
from ratchet.components.training.postconditions import check_rollout
from ratchet.components.types import Group, Prompt, Trajectory
from ratchet.tasks.pipeline import Pipeline

CHANGES = [
    "online.rounds=4",
    "online.prompts_per_round=4",
    "online.fit.save_every=2",
    "online.rollout.responses_per_prompt=4",
    "online.prompts={name: difficulty_pool}",
    "online.select=[{name: replay, share: 0.5, capacity: 8}]",
    "online.reference={name: ema, decay: 0.5}",
    "online.prepare=[{name: scoring.logprobs, model: reference}]",
    "online.fit.updates.policy=[{name: clip, old: sampled, reduce: token_mean}, {name: kl, weight: 0.5, "
    "reduce: token_mean}]",
]


CRITIC = (
    "online.start=2",
    "online.annotate=[{name: rewards.exact_answer}, {name: scoring.values, model: critic}, "
    "{name: advantages.gae, reward: reward.exact_answer}]",
    "online.roles={critic: {value_head: true, target: {name: ema, decay: 0.9}, start: 1, "
    "select: [{name: replay, share: 1.0, capacity: 8}], "
    "fresh: [{name: scoring.logprobs, model: critic_target}], "
    "fit: {updates: {critic: [{name: value, where: logprobs.critic_target}]}, batch: 4, epochs: 2, "
    "learning_rate: 3.0e-3}}}",
)
"""A critic with a model, replay, target and columns of its own, and a policy that learns from step 2 on."""


def prepared(home: Path, *changes: str) -> Pipeline:
    pipeline = Pipeline.open("rlvr_grpo", home=home, profile="test", overrides=[*CHANGES, *changes])
    for name in list(pipeline.stages)[: list(pipeline.stages).index("improve")]:
        pipeline.make(name)
    return pipeline


def improve(pipeline: Pipeline, work: Path) -> tuple[str, list[dict]]:
    """Digest of the weights, and the metrics of every step."""
    stage = pipeline.stages["improve"]
    execute(
        as_request("improve", stage.options, {k: pipeline.artifact(v) for k, v in stage.inputs.items()}, work)
    )
    lines = (work / "product" / "metrics.jsonl").read_text().splitlines()
    return file_digest(work / "product" / "model.safetensors"), [
        json.loads(line)["metrics"] for line in lines
    ]


def test_stateful_pieces_and_further_roles_resume_bit_for_bit(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = prepared(tiny_home, *CRITIC)
    weights, steps = improve(pipeline, tmp_path / "whole")
    assert "policy/loss" not in steps[0] and "policy/loss" in steps[1], "the policy learns from step 2 on"
    assert [s["critic/select/groups replayed"] for s in steps] == [0.0, 4.0, 4.0, 4.0]
    critic = tmp_path / "whole" / "product" / "roles" / "critic"
    assert (critic / "value_head.st").is_file() and (critic / "model.safetensors").is_file()
    assert [s["select/groups"] for s in steps] == [4.0, 6.0, 6.0, 6.0], "the first step has nothing to replay"
    assert abs(steps[1]["policy/kl/kl"]) < 1e-4 < max(abs(s["policy/kl/kl"]) for s in steps[2:]), (
        "the reference starts as the policy and lags"
    )
    checkpoint = latest(tmp_path / "whole" / "progress")
    assert checkpoint and checkpoint.name == "checkpoint-2"
    killed = tmp_path / "killed"
    shutil.copytree(checkpoint, killed / "progress" / checkpoint.name)
    (killed / "product").mkdir()
    shutil.copy(tmp_path / "whole" / "product" / "metrics.jsonl", killed / "product")
    assert improve(pipeline, killed) == (weights, steps)


LORA = (
    "online.fit.adapter={name: lora, rank: 4}",
    "online.reference=initial",
    "online.prompts={name: uniform}",
    "online.select=[]",
)


def test_a_reference_that_does_more_than_score_is_a_whole_model(tiny_home: Path, tmp_path: Path) -> None:
    """Values of hidden states, which the policy's own model with its adapter disabled does not give."""
    prepare = "[{name: scoring.logprobs, model: reference}, {name: scoring.trace_value, model: reference}]"
    pipeline = prepared(tiny_home, "online.rounds=1", *LORA, f"online.prepare={prepare}")
    assert improve(pipeline, tmp_path)[1][0]["policy/kl/kl"] == pytest.approx(0, abs=1e-4)
    groups = read_groups(tmp_path / "product" / "last_groups.parquet")
    assert all(0 < value < 1 for group in groups for value in group.columns["value.trace"])


VALUES = (
    "online.value_head=true",
    "online.annotate=[{name: rewards.exact_answer}, {name: scoring.values}, "
    "{name: advantages.gae, reward: reward.exact_answer}]",
    "online.fit.updates.policy=[{name: clip, old: sampled}, {name: value}, {name: kl}]",
)


@pytest.mark.parametrize("changes", [(), LORA, VALUES], ids=["full", "lora", "values"])
def test_an_engine_that_shares_the_weights_equals_one_that_reloads_them(
    changes: tuple[str, ...], tiny_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, loaded = prepared(tiny_home, "online.rounds=3", "online.fit.epochs=2", *changes), []
    shared = improve(pipeline, tmp_path / "shared")
    assert not (tmp_path / "shared" / "progress" / "current").exists()
    load = TorchEngine.load
    monkeypatch.setattr(TorchEngine, "load", lambda self, path: loaded.append(path.name) or load(self, path))

    def saved_and_loaded(profile, learner, folder, kind):
        learner.save(folder)
        engine = choose.engine_of(profile, folder, kind)
        return engine, lambda: (learner.save(folder), engine.load(folder))

    monkeypatch.setattr(stage, "live_engine", saved_and_loaded)
    assert improve(pipeline, tmp_path / "saved") == shared
    assert loaded.count("current") == 4, "once before the first step, and after each"


def test_the_reference_update_every_round_keeps_the_reference_at_the_policy(
    tiny_home: Path, tmp_path: Path
) -> None:
    _, steps = improve(
        prepared(tiny_home, "online.rounds=3", "online.reference={name: every_round}"), tmp_path
    )
    assert max(abs(s["policy/kl/kl"]) for s in steps) < 1e-4


def test_lora_reference_logprobs_equal_the_initial_policy(tiny_home: Path, tmp_path: Path) -> None:
    """With LoRA the reference is the learner's model with its adapter disabled."""
    pipeline = prepared(
        tiny_home,
        "online.rounds=2",
        "online.reference=initial",
        "online.fit.adapter={name: lora, rank: 4}",
        "online.prepare=[]",
        "online.annotate=[{name: rewards.exact_answer}, {name: advantages.group_norm, reward: "
        "reward.exact_answer}, "
        "{name: scoring.logprobs, model: reference}]",
    )
    _, steps = improve(pipeline, tmp_path)
    assert abs(steps[0]["policy/kl/kl"]) < 1e-4 and len(steps) == 2
    groups = read_groups(tmp_path / "product" / "last_groups.parquet")
    reference = pipeline.artifact("model_policy").path
    scores = TorchEngine(reference, threads=1).score(groups, frozenset({"logprobs"}))
    assert (
        max(
            abs(p - q)
            for g, row in zip(groups, scores, strict=True)
            for mine, theirs in zip(g.columns["logprobs.reference"], row["logprobs"], strict=True)
            for p, q in zip(mine, theirs, strict=True)
        )
        < 1e-4
    )


def test_learning_rates_fall_over_the_rounds_whatever_the_updates_of_a_round(
    tiny_home: Path, tmp_path: Path
) -> None:
    """Four rounds of 4 prompts. The log has the last update of a round: of those on the policy's pairs, which
    it learns from in rounds 2 to 4, and of the critic's two, with half a round behind it.
    """
    pipeline = prepared(
        tiny_home,
        "online.start=2",
        "online.prompts={name: uniform}",
        "online.annotate=[{name: rewards.exact_answer}, {name: scoring.values, model: critic}, "
        "{name: advantages.gae, reward: reward.exact_answer}]",
        "online.select=[{name: all_pairs, reward: reward.exact_answer}]",
        "online.fit.updates.policy=[{name: preference.dpo}]",
        "online.rollout.responses_per_prompt=8",
        "online.fit.schedule=linear",
        "online.fit.learning_rate=1.0e-4",
        "online.roles={critic: {value_head: true, fit: {updates: {critic: [{name: value}]}, batch: 4, "
        "epochs: 2, learning_rate: 1.0e-3, schedule: linear, warmup: 0.25}}}",
    )
    _, steps = improve(pipeline, tmp_path)
    updates = [math.ceil(step["select/groups"] / 8) for step in steps[1:]]
    assert "policy/learning_rate" not in steps[0] and max(updates) > 1
    assert [step["policy/learning_rate"] for step in steps[1:]] == pytest.approx(
        [1e-4 * (1 - (round_number + (made - 1) / made) / 3) for round_number, made in enumerate(updates)]
    )
    assert [step["critic/learning_rate"] for step in steps] == pytest.approx(
        [1e-3, 1e-3 * 2.5 / 3, 1e-3 * 1.5 / 3, 1e-3 * 0.5 / 3]
    )


def test_steps_done_are_steps_planned(tiny_home: Path, tmp_path: Path) -> None:
    """Invalid checkpoints: more steps than planned, or fewer optimiser updates than recorded steps."""
    pipeline = prepared(tiny_home, "online.rounds=3")
    improve(pipeline, tmp_path / "whole")
    checkpoint = latest(tmp_path / "whole" / "progress")
    assert checkpoint
    saved = load_state(checkpoint)
    for wrong, why in (
        ({"step": 9}, "9 of 3"),
        ({"updates": saved["state"]["updates"] + 1}, r"\d+ optimizer updates after 3 steps"),
    ):
        work = tmp_path / next(iter(wrong))
        save_state(work / "progress" / checkpoint.name, {**saved, "state": {**saved["state"], **wrong}})
        with pytest.raises(TrainingError, match=why):
            improve(pipeline, work)
        assert not (work / "product" / "model.safetensors").exists()


@pytest.mark.parametrize("does", ["improve", "rollout_1"])
def test_lost_answer_is_an_error(
    does: str, tiny_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if does == "improve":
        pipeline, planned = prepared(tiny_home), "15 of 16 responses to 4 prompts"
    else:
        pipeline = Pipeline.open(
            "raft",
            home=tiny_home,
            profile="test",
            overrides=["online.prompts_per_round=4", "online.rollout.responses_per_prompt=2"],
        )
        for name in list(pipeline.stages)[: list(pipeline.stages).index(does)]:
            pipeline.make(name)
        planned = "7 of 8 responses to 4 prompts"
    whole = TorchEngine.generate
    monkeypatch.setattr(
        TorchEngine,
        "generate",
        lambda self, requests: [a[i == 0 :] for i, a in enumerate(whole(self, requests))],
    )
    stage = pipeline.stages[does]
    with pytest.raises(DataError, match=planned):
        execute(
            as_request(
                stage.does,
                stage.options,
                {k: pipeline.artifact(v) for k, v in stage.inputs.items()},
                tmp_path,
            )
        )


def test_lost_prompt_is_an_error() -> None:
    options = {"prompts_per_round": 2, "prompts": {"name": "uniform"}, "rollout": {"name": "sample"}}
    group = Group(Prompt("p", ()), ())
    assert check_rollout([group, group], options) == [group, group]
    with pytest.raises(DataError, match="1 of 2 prompts"):
        check_rollout([group], options)


def test_a_rollout_may_return_more_answers_than_it_was_asked_for() -> None:
    """All leaves of a prompt's search trees; fewer were lost."""
    rollout = {"name": "tree_search", "responses_per_prompt": 2, "leaves": True}
    options = {"prompts_per_round": 1, "prompts": {"name": "uniform"}, "rollout": rollout}
    leaves = [Group(Prompt("p", ()), (Trajectory(()),) * number) for number in (1, 3)]
    assert check_rollout(leaves[1:], options) == leaves[1:]
    with pytest.raises(DataError, match="1 of 2 responses"):
        check_rollout(leaves[:1], options)
