"""Learning from a buffer of turns: the buffers are in the checkpoint, and resume is bit-identical."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ratchet.components.stages.run import as_request, execute
from ratchet.components.storage.checkpoints import latest
from ratchet.components.storage.state import load_state
from ratchet.components.storage.store import file_digest
from ratchet.tasks.pipeline import Pipeline

CHANGES = [
    "models.policy={source: 'generate:tiny?seed=0', format: tiny}",  # that of `tiny_home`
    "data.source='generate:doors?size=400&seed=1&right=bc'",
    "sft.limit=8",
    "sft.fit.epochs=1",
    "sft.fit.min_ended=0.0",
    "online.rounds=3",
    "online.start=2",
    "online.prompts_per_round=3",
    "online.fit.save_every=2",
    "online.fit.min_ended=0.0",
    "online.select.0.count=6",
    "online.roles.critic.select.0.count=8",
    "online.roles.critic.fit.batch=4",
]


def improve(pipeline: Pipeline, work: Path) -> tuple[list[str], list[dict]]:
    """Digests of the weights of policy and critic, and the metrics of every step."""
    stage = pipeline.stages["improve"]
    inputs = {name: pipeline.artifact(value) for name, value in stage.inputs.items()}
    execute(as_request("improve", stage.options, inputs, work))
    product = work / "product"
    lines = (product / "metrics.jsonl").read_text().splitlines()
    digests = [file_digest(path / "model.safetensors") for path in (product, product / "roles" / "critic")]
    return digests, [json.loads(line)["metrics"] for line in lines]


def test_turn_buffers_survive_a_checkpoint_and_resume_is_bit_for_bit(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.open("archer", home=tiny_home, profile="test", overrides=CHANGES)
    for name in list(pipeline.stages)[: list(pipeline.stages).index("improve")]:
        pipeline.make(name)
    whole = improve(pipeline, tmp_path / "whole")
    steps = whole[1]
    stored = [step["select/turns stored"] for step in steps]
    assert stored == [step["critic/select/turns stored"] for step in steps] and min(stored) >= 3
    assert ["policy/loss" in step for step in steps] == [False, True, True], "the critic learns first"
    checkpoint = latest(tmp_path / "whole" / "progress")
    assert checkpoint and checkpoint.name == "checkpoint-2"
    memories = load_state(checkpoint)["memories"]
    for name in ("select.0.turn_replay", "critic.select.0.turn_replay"):
        assert len(memories[name]["memory"]) == sum(stored[:2])
    killed = tmp_path / "killed"
    shutil.copytree(checkpoint, killed / "progress" / checkpoint.name)
    (killed / "product").mkdir()
    shutil.copy(tmp_path / "whole" / "product" / "metrics.jsonl", killed / "product")
    assert improve(pipeline, killed) == whole
