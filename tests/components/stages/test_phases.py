"""Recipes with phases, run on the tiny model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.components.data.groups import read_groups
from ratchet.components.storage.store import read_manifest
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.registry.registration import checkpoints, final_stage, model_of

ROOT = Path(__file__).resolve().parents[3]
COMMON = """
schema: 1
about: Phases on the tiny model.
models: {policy: {source: "generate:tiny?seed=0", format: tiny}}
data:
  source: "generate:tiny_corpus?size=600&seed=3"
  splits: {sft: 0.3, prompts: 0.4, evaluate: 0.3}
  transforms: [duplicates]
  min_groups: 1
"""
SFT = "{does: learn, data: sft, limit: 16, fit: {updates: {policy: [likelihood]}, batch: 8, min_ended: 0.0}}"
STEPS = """
    does: online
    cadence: step
    rounds: 2
    prompts_per_round: 4
    rollout: {name: sample, responses_per_prompt: 4, max_tokens: 8}
    annotate: [rewards.length, {name: advantages.group_norm, reward: reward.length}]
    fit: {updates: {policy: [reinforce]}, batch: 4, min_ended: 0.0}
"""
ROUNDS = STEPS.replace("cadence: step", "cadence: round").replace("rounds: 2", "rounds: 1")
TRIES = """
    does: groups
    data: prompts
    validation: evaluate
    rollout: {name: sample, responses_per_prompt: 4, max_tokens: 8}
    annotate: [rewards.length]
"""
TWO = f"phases:\n  warm: {SFT}\n  colder: {SFT}\nregister: {{}}\n"
SCORE = f"""
phases:
  warm: {SFT}
  first:{STEPS}
  second:{ROUNDS}    prepare: [{{name: scoring.logprobs, model: warm}}]
"""
JUDGED = f"""
phases:
  tries:{TRIES}    select: [{{name: best_worst, reward: reward.length}}]
  judge:
    does: reward
    data: tries
    validation: tries_validation
    certificate: {{min_accuracy: null, max_ties: null}}
    fit: {{updates: {{reward_model: [ranking.bradley_terry]}}, batch: 8}}
  main:{STEPS.replace("[rewards.length,", "[{name: rewards.reward_model, model: judge},").replace("reward: reward.length", "reward: reward.judge")}
"""  # noqa: E501
BATCHES = f"""
phases:
  tries:{TRIES}    select: [{{name: best_worst, reward: reward.length}}]
  first: {{does: groups, data: tries, select: [{{name: uniform, share: 0.25}}]}}
  second: {{does: groups, data: tries, select: [{{name: uniform, share: 0.5}}]}}
  judge:
    does: reward
    data: second
    also: first
    validation: tries_validation
    certificate: {{min_accuracy: null, max_ties: null}}
    fit: {{updates: {{reward_model: [ranking.bradley_terry]}}, batch: 8}}
"""
CYCLE = f"""
cycle: [tries, main]
cycles: 2
phases:
  tries:{TRIES}    select: [{{name: best_of_n, reward: reward.length}}]
  main: {SFT.replace("data: sft", "data: tries")}
"""


def opened(folder: Path, text: str, home: Path) -> Pipeline:
    file = folder / "phased.yaml"
    file.write_text(COMMON + text)
    return Pipeline.open(file, home=home, profile="test")


def run(pipeline: Pipeline) -> Pipeline:
    pipeline.begin()
    for name in pipeline.stages:
        pipeline.make(name)
    return pipeline


def weights(pipeline: Pipeline, stage: str) -> dict[str, str]:
    manifest = read_manifest(pipeline.artifact(stage).path)
    assert manifest is not None
    return {n: e["sha256"] for n, e in manifest["files"].items() if n.endswith(".safetensors")}


def test_two_supervised_phases_in_sequence(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = run(opened(tmp_path, TWO, tiny_home))
    assert weights(pipeline, "warm") != weights(pipeline, "colder")
    assert checkpoints(pipeline) == ["warm", "colder"] and final_stage(pipeline) == "colder"


def test_two_online_phases_after_a_supervised_one(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = run(opened(tmp_path, SCORE, tiny_home))
    assert pipeline.stages["second_rollout_1"].inputs["policy"] == "first"
    assert final_stage(pipeline) == "second_optimise_1"
    assert len({str(weights(pipeline, name)) for name in ("warm", "first", "second_optimise_1")}) == 3


def test_groups_of_a_phase_teach_a_reward_model_that_a_later_phase_uses(
    tiny_home: Path, tmp_path: Path
) -> None:
    pipeline = run(opened(tmp_path, JUDGED + "register: {}\n", tiny_home))
    pairs = read_groups(pipeline.artifact("tries").path / "groups.parquet")
    assert pairs and all(len(pair.trajectories) == 2 for pair in pairs)
    assert "certificate" in pipeline.artifact("judge").meta
    assert final_stage(pipeline) == "main" and model_of(pipeline, "judge") == "phased-reward"


def test_a_reward_model_learns_from_two_sets_of_pairs(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = run(opened(tmp_path, BATCHES + "register: {}\n", tiny_home))
    first, second = (
        len(read_groups(pipeline.artifact(name).path / "groups.parquet")) for name in ("first", "second")
    )
    meta = pipeline.artifact("judge").meta
    assert first and second and first != second
    assert (meta["counts"]["also kept"], meta["counts"]["kept"]) == (first, second)
    assert meta["steps"] == -(-(first + second) // 8)


def test_a_reward_model_learns_from_two_splits(tiny_home: Path) -> None:
    splits = "{reward: 0.3, reward_validation: 0.1, pairs: 0.2, pairs_validation: 0.1, evaluate: 0.3}"
    changes = [f"data.splits={splits}", "reward.also=pairs", "reward.fit.epochs=1"]
    pipeline = Pipeline.open("reward_model", home=tiny_home, profile="test", overrides=changes)
    for name in pipeline.stages:
        pipeline.make(name)
        if name == "reward":
            break
    folder, counts = pipeline.artifact("curated").path, pipeline.artifact("reward").meta["counts"]
    own, others = (len(read_groups(folder / f"{name}.parquet")) for name in ("reward", "pairs"))
    assert own != others and (counts["kept"], counts["also kept"]) == (own, others)


def test_a_cycle_samples_with_the_policy_of_the_pass_before(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = run(opened(tmp_path, CYCLE, tiny_home))
    first, second = (
        read_groups(pipeline.artifact(name).path / "groups.parquet") for name in ("tries", "tries_2")
    )
    assert first[0].trajectories[0].weights != second[0].trajectories[0].weights
    assert final_stage(pipeline) == "main_2"


KILLED = """
import os, signal, sys
from pathlib import Path
from ratchet.tasks.pipeline import Pipeline
pipeline = Pipeline.open(sys.argv[1], home=Path(sys.argv[2]), profile="test")
for name in pipeline.stages:
    if name == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
    pipeline.make(name)
"""


def test_a_run_killed_between_phases_resumes_with_equal_weights(
    fresh_home: Callable[[str], Path], tmp_path: Path
) -> None:
    whole = run(opened(tmp_path, SCORE, fresh_home("whole")))
    broken = fresh_home("broken")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "phased.yaml"), str(broken), "second_rollout_1"]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    assert list((broken / "store").glob("first-*")) and not list((broken / "store").glob("second_*"))
    resumed = run(opened(tmp_path, SCORE, broken))
    assert weights(resumed, "second_optimise_1") == weights(whole, "second_optimise_1")


def test_the_command_runs_phases_and_until_train_ends_before_the_evaluation(
    tiny_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ratchet.flows import post_training as flow

    made: list[str] = []
    monkeypatch.setattr(flow, "make", lambda pipeline, name: made.append(name))
    monkeypatch.setattr(flow, "online_round", flow.online_round.fn)
    pipeline = opened(tmp_path, SCORE + "evaluate: {prompts: 2, perplexity_rows: 0}\n", tiny_home)
    flow.make_part(pipeline, "train")
    assert made == [
        "warm",
        "first",
        *(f"second_{step}_1" for step in ("rollout", "annotate", "select", "optimise")),
    ]
