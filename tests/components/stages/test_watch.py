"""Stops and holds during training: stale sampler weights, endless answers, health rules; by rounds and by
steps.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.components.errors import ContractError, HealthError
from ratchet.components.evaluation.health import Verdict
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models import products
from ratchet.components.models.load import load_policy, load_tokenizer, save_model
from ratchet.components.models.value import load_value_head
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile
from ratchet.components.stages import watch
from ratchet.components.stages.probe import probe, verify_saved
from ratchet.components.stages.run import as_request, execute
from ratchet.components.stages.watch import ENOUGH, Health
from ratchet.components.storage.checkpoints import latest
from ratchet.components.storage.store import file_digest
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Artifact, Group, Prompt, Trajectory
from ratchet.tasks.pipeline import Pipeline

STEPS = [
    "online.rounds=4",
    "online.prompts_per_round=8",
    "online.rollout.responses_per_prompt=8",
    "online.fit.save_every=2",
    "online.select=[]",
]
ROUNDS = ["online.rounds=3", "online.prompts_per_round=8", "online.fit.learning_rate=1e-2"]


def rule(action: str) -> str:
    """A health rule that always trips."""
    return f"{{entropy: {{limit: 99.0, action: {action}}}}}"


def prepared(recipe: str, home: Path, last: str, *changes: str) -> Pipeline:
    """A run with every stage before `last` finished."""
    pipeline = Pipeline.open(recipe, home=home, profile="test", overrides=list(changes))
    for name in list(pipeline.stages)[: list(pipeline.stages).index(last)]:
        pipeline.make(name)
    return pipeline


def work(
    pipeline: Pipeline, name: str, at: Path, **others: Artifact
) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """A stage's meta and the metrics of its steps, made outside the store, some inputs replaced."""
    stage = pipeline.stages[name]
    inputs = {**{k: pipeline.artifact(v) for k, v in stage.inputs.items()}, **others}
    meta = execute(as_request(stage.does, stage.options, inputs, at))
    metrics = at / "product" / "metrics.jsonl"
    return meta, [
        json.loads(line)["metrics"] for line in metrics.read_text().splitlines()
    ] if metrics.exists() else []


def weights(path: Path) -> str:
    return file_digest(path / "model.safetensors")


@pytest.fixture(scope="module")
def mute(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with an output layer that makes end-of-turn as unlikely as possible."""
    model, tokenizer = load_policy(tiny_model, attention="sdpa"), load_tokenizer(tiny_model)
    states: list[torch.Tensor] = []
    model.lm_head.register_forward_pre_hook(lambda _, given: states.append(given[0][0].detach()))
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "3 + 4 ="}, {"role": "assistant", "content": "7"}],
        return_tensors="pt",
        return_dict=True,
    )
    model(input_ids=ids["input_ids"])
    mean = states[0].mean(0)
    head = torch.nn.Linear(model.lm_head.in_features, model.lm_head.out_features, bias=False)
    with torch.no_grad():
        head.weight.copy_(model.lm_head.weight)
        for end in {tokenizer.eos_token_id, model.config.eos_token_id}:
            head.weight[end] = -50 * mean / mean.norm() ** 2
    model.lm_head, model.config.tie_word_embeddings = head, False
    path = tmp_path_factory.mktemp("mute")
    save_model(model, tokenizer, path)
    return path


# --- the probe
# --------------------------------------------------------------------------------------------------------


def test_stale_sampler_weights_stop_the_steps(
    tiny_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = prepared("rlvr_grpo", tiny_home, "improve", *STEPS)
    follow = TorchEngine.follow

    def once(self: TorchEngine, learner: Any) -> None:
        if not hasattr(self, "model"):
            follow(self, learner)
            self.model = copy.deepcopy(self.model)

    monkeypatch.setattr(TorchEngine, "follow", once)
    with pytest.raises(ContractError, match=r"nats.*0\.001"):
        work(pipeline, "improve", tmp_path)
    steps = (tmp_path / "product" / "metrics.jsonl").read_text().splitlines()
    assert len(steps) == 1, "the first answers after the first update are not the learner's"
    assert not (tmp_path / "product" / "model.safetensors").exists()


def test_saved_weights_that_differ_from_the_learner_stop_the_round(tiny_model: Path, mute: Path) -> None:
    learner, profile = TorchLearner(tiny_model, learning_rate=1e-3, threads=1), plain(Profile(threads=1))
    tokens = TorchEngine(tiny_model, threads=1).encode_prompt(
        Prompt("", ({"role": "user", "content": "3 + 4 ="},))
    )
    groups = [
        Group(
            Prompt("p", ()),
            (Trajectory((), {"tokens": [*tokens, tokens[0]]}, [False] * len(tokens) + [True]),),
        )
    ] * 8
    assert probe(tiny_model, learner, groups, profile, seed=0, min_ended=0.05)["sampler_difference"] < 1e-4
    with pytest.raises(ContractError, match="nats"):
        probe(mute, learner, groups, profile, seed=0, min_ended=0.0)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_saved_weights_are_compared_in_float32_whatever_the_precision_of_training(
    precision: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "has_bfloat16", lambda: True)
    learner, engine = (
        TorchLearner(tiny_model, learning_rate=1e-3, threads=1),
        TorchEngine(tiny_model, threads=1),
    )
    group = engine.encode(
        Group(
            Prompt("p", ({"role": "user", "content": "3 + 4 ="},)),
            (Trajectory(({"role": "assistant", "content": "7 and 8 and 9"},)),),
        )
    )
    sample, mixed = TorchEngine.generate, list[bool]()
    monkeypatch.setattr(
        TorchEngine, "generate", lambda self, requests: mixed.append(products.MIXED) or sample(self, requests)
    )
    with products.product_precision(precision):
        assert verify_saved(tiny_model, learner, [group], kind="policy", tokens=64) < 1e-4
        assert (
            probe(
                tiny_model,
                learner,
                [group],
                plain(Profile(threads=1, precision=precision)),
                seed=0,
                min_ended=0.0,
            )["sampler_difference"]
            < 1e-4
        )
    assert mixed == [False]


@pytest.mark.parametrize(
    ("recipe", "stage", "changes"), [("raft", "optimise_1", ROUNDS[:2]), ("rlvr_grpo", "improve", STEPS)]
)
def test_policy_without_end_of_turn_stops_the_run(
    recipe: str, stage: str, changes: list[str], mute: Path, tiny_home: Path, tmp_path: Path
) -> None:
    others = {name: Artifact("weights", mute, "mute") for name in ("policy", "reference")}
    with pytest.raises(ContractError, match=r"0% of \d+ .*`fit\.min_ended`.*5%.*steps \(`fit\.epochs`\)"):
        work(prepared(recipe, tiny_home, stage, *changes), stage, tmp_path / "strict", **others)
    job = prepared(recipe, tiny_home, stage, *changes, "online.fit.min_ended=0.0", "online.select=[]")
    meta, _ = work(job, stage, tmp_path / "told", **others)
    assert meta["probe"]["ended"] == 0.0, "a recipe whose answers have no end may say so"


# --- health rules, by rounds
# ------------------------------------------------------------------------------------------


def test_stop_rule_ends_the_run_after_its_round(tiny_home: Path) -> None:
    pipeline = prepared(
        "raft", tiny_home, "annotate_2", *ROUNDS, f"online.by_round={{2: {{health: {rule('stop')}}}}}"
    )
    with pytest.raises(HealthError, match=r"round 2 .*entropy is [\d.]+ nats.*99"):
        pipeline.make("annotate_2")
    states = {s.stage.name: s.state for s in pipeline.status()}
    assert states["optimise_1"] == "done" and states["annotate_2"] != "done"


def test_rolled_back_round_restores_the_previous_weights(tiny_home: Path) -> None:
    """Rounds 2 and 3 are rolled back: both end with the policy before round 1's update, which
    tripped the rule.
    """
    rules = f"health: {rule('roll_back')}"
    pipeline = prepared(
        "raft", tiny_home, "optimise_3", *ROUNDS, f"online.by_round={{2: {{{rules}}}, 3: {{{rules}}}}}"
    )
    pipeline.make("optimise_3")
    first, learnt, *after = (
        weights(pipeline.artifact(name).path)
        for name in ("model_policy", "optimise_1", "optimise_2", "optimise_3")
    )
    assert learnt != first and after == [first, first]
    assert pipeline.artifact("optimise_3").meta["rolled_back"]


# --- health rules, by steps
# -------------------------------------------------------------------------------------------


def test_stop_rule_ends_the_steps(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = prepared(
        "rlvr_grpo",
        tiny_home,
        "improve",
        *STEPS,
        "online.watch={kl_prompts: 8}",
        "online.health={kl: {limit: 1.0e-3, action: stop}}",
        "online.fit.learning_rate=3e-3",
        "online.fit.min_ended=0.0",
    )
    with pytest.raises(HealthError, match=r"step \d .*KL to the initial policy is [\d.]+ nats"):
        work(pipeline, "improve", tmp_path)
    steps = [
        json.loads(line)["metrics"]
        for line in (tmp_path / "product" / "metrics.jsonl").read_text().splitlines()
    ]
    assert (
        steps and steps[0]["rollout/kl"] == 0.0 and not (tmp_path / "product" / "model.safetensors").exists()
    )


def test_all_rolled_back_steps_leave_the_weights_unchanged(
    tiny_home: Path, tiny_model: Path, tmp_path: Path
) -> None:
    meta, steps = work(
        prepared("rlvr_grpo", tiny_home, "improve", *STEPS, f"online.health={rule('roll_back')}"),
        "improve",
        tmp_path,
    )
    assert (
        meta["rolled_back_steps"] == 5
        and meta["updates"] == 0
        and meta["verdict"] == "roll_back"
        and "(at step 4, 5 times in all)" in meta["verdicts"][0]
    )
    assert [s["health/rolled_back"] for s in steps] == [1.0] * 4
    before, after = load_policy(tiny_model).state_dict(), load_policy(tmp_path / "product").state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_rolled_back_step_is_undone_and_resume_is_bit_identical(tiny_home: Path, tmp_path: Path) -> None:
    changes = [
        *STEPS,
        "online.rounds=6",
        "online.fit.learning_rate=1e-3",
        "online.fit.min_ended=0.0",
        "online.watch={kl_prompts: 8}",
    ]
    _, free = work(prepared("rlvr_grpo", tiny_home, "improve", *changes), "improve", tmp_path / "free")
    kl = [step["rollout/kl"] for step in free]  # 0 at first, whatever this processor made of the model
    limit = max(kl) / 2
    first = next(i for i in range(6) if kl[i] > limit)
    pipeline = prepared(
        "rlvr_grpo",
        tiny_home,
        "improve",
        *changes,
        f"online.health={{kl: {{limit: {limit}, action: roll_back}}}}",
    )
    meta, steps = work(pipeline, "improve", tmp_path / "whole")
    rolled_back = [step["health/rolled_back"] for step in steps]
    assert first > 0 and rolled_back[: first + 1] == [0.0] * first + [1.0], (
        "the first that trips is the one that tripped in the free run"
    )
    assert meta["updates"] < 6 and meta["rolled_back_steps"] >= sum(rolled_back)
    checkpoint = latest(tmp_path / "whole" / "progress")
    assert checkpoint and checkpoint.name == "checkpoint-4"
    shutil.copytree(checkpoint, tmp_path / "killed" / "progress" / checkpoint.name)
    assert work(pipeline, "improve", tmp_path / "killed")[1] == steps[4:]
    assert weights(tmp_path / "killed" / "product") == weights(tmp_path / "whole" / "product")


def test_rollback_covers_the_moving_reference_and_further_roles(
    tiny_home: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 2 and the check of the final weights undo everything that steps 1 and 3 learned."""
    checks = iter([[], [Verdict("kl", "roll_back", 2.0, 1.0, "too far")]] * 2)
    monkeypatch.setattr(watch, "check", lambda history, rules: next(checks))
    pipeline = prepared(
        "rlvr_grpo",
        tiny_home,
        "improve",
        *STEPS,
        "online.rounds=3",
        "online.fit.min_ended=0.0",
        f"online.health={rule('roll_back')}",
        "online.annotate=[{name: rewards.exact_answer}, {name: scoring.values, model: critic}, "
        "{name: advantages.gae, reward: reward.exact_answer}]",
        "online.roles={critic: {value_head: true, target: {name: ema, decay: 0.5}, "
        "fit: {updates: {critic: [{name: value}]}, learning_rate: 1.0e-2, schedule: constant, warmup: 0.0}}}",
    )
    meta, steps = work(pipeline, "improve", tmp_path)
    assert [step["health/rolled_back"] for step in steps] == [0.0, 1.0, 0.0]
    assert meta["rolled_back_steps"] == 2
    assert steps[0]["critic/grad_norm"] > 0 and steps[2]["policy/kl/kl"] == steps[0]["policy/kl/kl"]
    assert meta["updates"] == 0 and meta["role_updates"] == {"critic": 0}
    before = load_policy(tiny_model).state_dict()
    for folder in (tmp_path / "product", tmp_path / "product" / "roles" / "critic"):
        after = load_policy(folder).state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before), folder
    assert not load_value_head(tmp_path / "product" / "roles" / "critic", 160).weight.any()


class Counted:
    """A learner whose weights are one number."""

    def __init__(self) -> None:
        self.weight = 0

    def state(self) -> dict[str, int]:
        return {"weight": self.weight}

    def restore(self, state: Mapping[str, int]) -> None:
        self.weight = state["weight"]


def round_metrics(responses: float = ENOUGH, **numbers: float) -> dict[str, float]:
    return {"responses": responses, "length": 20.0, "truncated": 0.1, "entropy": 2.0, **numbers}


def test_hold_restores_the_last_healthy_weights() -> None:
    learner, critic, run = Counted(), Counted(), {"updates": 0, "rolled_back": 0}
    health = Health(
        {"health": {"entropy": {"limit": 1.0, "action": "roll_back"}}, "fit": {"min_ended": 0.05}},
        {"policy": learner, "critic": critic},
    )
    for step, (entropy, after) in enumerate([(2.0, 1), (2.0, 2), (0.5, 1), (0.5, 1), (2.0, 2)], start=1):
        undone = health(step, round_metrics(entropy=entropy), run)
        assert undone == (entropy < 1.0) and learner.weight == critic.weight == run["updates"]
        if not undone:
            learner.weight = critic.weight = run["updates"] = learner.weight + 1
        assert learner.weight == after, f"step {step}"
    assert run["rolled_back"] == 2


def test_health_rules_pool_small_steps_and_test_their_mean() -> None:
    health, run = (
        Health(
            {"health": {"length_ratio": {"limit": 1.5, "action": "roll_back"}}, "fit": {"min_ended": 0.2}},
            {"policy": Counted()},
        ),
        {"updates": 0, "rolled_back": 0},
    )
    tripped = [
        health(i, round_metrics(ENOUGH / 4, length=length), run)
        for i, length in enumerate([20.0] * 4 + [60.0, 20.0, 20.0, 36.0], start=1)
    ]
    assert tripped == [False] * 7 + [True], (
        "one long step alone says nothing; the mean of four, 34 against 20, does"
    )
    for _ in range(2):  # a step without sampled answers has no entropy
        health(9, {"responses": ENOUGH / 4, "length": 20.0, "truncated": 0.1}, run)
        health(9, round_metrics(ENOUGH / 4), run)
    for i in range(3):
        assert not health(9 + i, round_metrics(ENOUGH / 4, truncated=1.0), run)
    with pytest.raises(ContractError, match=f"0% of {ENOUGH} answers"):
        health(12, round_metrics(ENOUGH / 4, truncated=1.0), run)
