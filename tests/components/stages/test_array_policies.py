"""Stages with a policy of arrays: from a new model to evaluation, and the resume of on-policy steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ratchet.components.data.groups import read_groups
from ratchet.components.models.families import load_family
from ratchet.components.stages.run import as_request, execute
from ratchet.components.storage.checkpoints import latest
from ratchet.components.storage.store import file_digest
from ratchet.tasks.pipeline import Pipeline

SMALL = [
    "seed=3",
    "data.source=generate:point_mass_starts?shown=12&prompts=24&test=12&seed=1",
    "phases.clone.fit.epochs=2",
    "phases.main.rounds=4",
    "phases.main.prompts_per_round=6",
    "phases.main.rollout.steps=8",
    "phases.main.fit.save_every=2",
    "phases.main.fit.batch=6",
    "phases.main.fit.epochs=1",
    "phases.main.prepare=[{name: scoring.logprobs, model: reference}]",
    "phases.main.reference={name: ema, decay: 0.5}",
    "phases.main.select=[{name: replay, share: 0.5, capacity: 8}]",
    "phases.main.fit.updates.policy=[{name: clip, old: sampled}, {name: value, weight: 0.5, clip: null}, "
    "{name: kl, weight: 0.1}, {name: entropy, weight: 0.01}]",
    "evaluate.prompts=6",
]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    home = tmp_path_factory.mktemp("home")
    made = Pipeline.open("point_mass", home=home, profile="test", overrides=SMALL)
    for name in made.stages:
        made.make(name)
    return made


def improved(pipeline: Pipeline, work: Path) -> tuple[str, list[dict]]:
    """Digest of the weights, and the metrics of every step."""
    stage = pipeline.stages["main"]
    inputs = {name: pipeline.artifact(other) for name, other in stage.inputs.items()}
    execute(as_request("improve", stage.options, inputs, work))
    lines = (work / "product" / "metrics.jsonl").read_text().splitlines()
    return file_digest(work / "product" / "model.safetensors"), [
        json.loads(line)["metrics"] for line in lines
    ]


def test_steps_resume_bit_for_bit(pipeline: Pipeline, tmp_path: Path) -> None:
    weights, steps = improved(pipeline, tmp_path / "whole")
    checkpoint = latest(tmp_path / "whole" / "progress")
    assert checkpoint and checkpoint.name == "checkpoint-2"
    assert abs(steps[0]["policy/kl/kl"]) < 1e-5 < max(abs(s["policy/kl/kl"]) for s in steps[1:])
    killed = tmp_path / "killed"
    shutil.copytree(checkpoint, killed / "progress" / checkpoint.name)
    (killed / "product").mkdir()
    shutil.copy(tmp_path / "whole" / "product" / "metrics.jsonl", killed / "product")
    assert improved(pipeline, killed) == (weights, steps)


def test_every_stage_of_a_recipe_makes_what_it_says(pipeline: Pipeline) -> None:
    product = {name: pipeline.artifact(name).path for name in pipeline.stages}
    shown = read_groups(product["shown"] / "groups.parquet")
    assert len(shown) == 12 and shown[0].trajectories[0].actor == "expert"
    contracts = [
        pipeline.artifact(name).meta["contract"] for name in ("model_policy", "shown", "clone", "main")
    ]
    assert contracts == contracts[:1] * 4
    clone, trained = (
        load_family(product["clone"], "policy"),
        load_family(product["main"], "policy_with_value"),
    )
    assert clone.value is None and trained.value[-1].weight.abs().sum().item() > 0  # type: ignore[index, union-attr, operator, arg-type]
    metrics = json.loads((product["evaluate"] / "results.json").read_text())["metrics"]
    assert metrics["final.reward.environment"] < 0 and metrics["kl_to_sft"] >= 0
    assert pipeline.artifact("main").meta["reload_difference"] < 1e-4


def test_an_edit_of_the_family_changes_the_keys_of_its_models() -> None:
    from ratchet.components.pieces.families import gaussian
    from ratchet.components.recipes.source_keys import our_sources, source_digest

    file, given = Path(gaussian.__file__), {"source": "generate:gaussian?observation=3&action=1"}
    edited = our_sources(
        {file: file.read_text().replace("return actions, log_density", "return mean, log_density")}
    )
    assert source_digest("make_new", given, edited) != source_digest("make_new", given)
