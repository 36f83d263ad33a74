"""Step cadence: what pieces remember is part of the checkpoint, so a killed run goes on bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from components.progress import latest
from components.run import as_request, execute
from components.store import file_digest
from tasks.pipeline import Pipeline

CHANGES = ["online.rounds=4", "online.prompts_per_round=4", "online.fit.save_every=2", "online.rollout.responses_per_prompt=4",
           "online.prompts={name: difficulty_pool}", "online.select=[{name: replay, share: 0.5, capacity: 8}]",
           "online.reference={name: ema, follow: 0.5}", "online.prepare=[{name: scoring.logprobs, model: reference}]",
           "online.fit.updates.policy=[{name: clip, old: sampled, reduce: token_mean}, {name: kl, weight: 0.5, reduce: token_mean}]"]


def prepared(home: Path, *changes: str) -> Pipeline:
    pipeline = Pipeline.open("rlvr_grpo", home=home, profile="test", overrides=[*CHANGES, *changes])
    for name in list(pipeline.stages)[: list(pipeline.stages).index("improve")]:
        pipeline.make(name)
    return pipeline


def improve(pipeline: Pipeline, work: Path) -> tuple[str, list[dict]]:
    """Digest of the weights, and the metrics of every step."""
    stage = pipeline.stages["improve"]
    execute(as_request("improve", stage.options, {k: pipeline.artifact(v) for k, v in stage.inputs.items()}, work))
    lines = (work / "product" / "metrics.jsonl").read_text().splitlines()
    return file_digest(work / "product" / "model.safetensors"), [json.loads(line)["metrics"] for line in lines]


def test_a_run_with_memory_resumes_bit_for_bit(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = prepared(tiny_home)
    weights, steps = improve(pipeline, tmp_path / "whole")
    assert [s["select/groups"] for s in steps] == [4.0, 6.0, 6.0, 6.0], "the first step has nothing to replay"
    assert abs(steps[0]["policy/kl/kl"]) < 1e-4 < max(abs(s["policy/kl/kl"]) for s in steps[1:]), "the reference starts as the policy and lags"
    checkpoint = latest(tmp_path / "whole" / "progress")
    assert checkpoint and checkpoint.name == "checkpoint-2"
    killed = tmp_path / "killed"
    shutil.copytree(checkpoint, killed / "progress" / checkpoint.name)
    (killed / "product").mkdir()
    shutil.copy(tmp_path / "whole" / "product" / "metrics.jsonl", killed / "product")
    assert improve(pipeline, killed) == (weights, steps)


def test_the_anchor_every_round_keeps_the_reference_at_the_policy(tiny_home: Path, tmp_path: Path) -> None:
    _, steps = improve(prepared(tiny_home, "online.rounds=3", "online.reference={name: every_round}"), tmp_path)
    assert max(abs(s["policy/kl/kl"]) for s in steps) < 1e-4
