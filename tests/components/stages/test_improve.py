"""Step cadence: what pieces remember is part of the checkpoint, so a killed run goes on bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from components.run import as_request, execute
from components.store import file_digest
from components.trainer import latest
from tasks.pipeline import Pipeline

CHANGES = ["online.rounds=4", "online.prompts_per_round=4", "online.fit.save_every=2", "online.rollout.responses_per_prompt=4",
           "online.prompts={name: difficulty_pool}", "online.select=[{name: replay, share: 0.5, capacity: 8}]"]


@pytest.fixture(scope="module")
def pipeline(tiny_home: Path) -> Pipeline:
    pipeline = Pipeline.open("rlvr_grpo", home=tiny_home, profile="test", overrides=CHANGES)
    for name in list(pipeline.stages)[: list(pipeline.stages).index("improve")]:
        pipeline.make(name)
    return pipeline


def improve(pipeline: Pipeline, work: Path) -> tuple[str, list[dict]]:
    """Digest of the weights, and the metrics of every step."""
    stage = pipeline.stages["improve"]
    execute(as_request("improve", stage.options, {k: pipeline.artifact(v) for k, v in stage.inputs.items()}, work))
    lines = (work / "product" / "metrics.jsonl").read_text().splitlines()
    return file_digest(work / "product" / "model.safetensors"), [json.loads(line)["metrics"] for line in lines]


def test_a_run_with_memory_resumes_bit_for_bit(pipeline: Pipeline, tmp_path: Path) -> None:
    weights, steps = improve(pipeline, tmp_path / "whole")
    assert [s["select/groups"] for s in steps] == [4.0, 6.0, 6.0, 6.0], "the first step has nothing to replay"
    checkpoint = latest(tmp_path / "whole" / "progress")
    assert checkpoint and checkpoint.name == "checkpoint-2"
    killed = tmp_path / "killed"
    shutil.copytree(checkpoint, killed / "progress" / checkpoint.name)
    (killed / "product").mkdir()
    shutil.copy(tmp_path / "whole" / "product" / "metrics.jsonl", killed / "product")
    assert improve(pipeline, killed) == (weights, steps)
