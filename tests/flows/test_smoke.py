"""Every recipe over the tiny model runs from its data to its end, small; a second run has nothing to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.pipeline import Pipeline

SMALL = {
    "sft": ["sft.limit=48", "evaluate.prompts=6"],
    "reward_model": ["reward.limit=64", "reward.limit_validation=24", "reward.certificate.min_accuracy=0.0"],
    "dpo": ["offline.limit=32", "evaluate.prompts=6"],
    "online_dpo": ["reward.limit=64", "online.prompts_per_round=6", "evaluate.prompts=6", "reward.certificate.min_accuracy=0.0"],
    "raft": ["reward.limit=64", "online.rounds=1", "online.prompts_per_round=6", "evaluate.prompts=6",
             "reward.certificate.min_accuracy=0.0"],
    "reward_ensemble": ["reward.limit=48", "reward.members=3", "online.rounds=1", "online.prompts_per_round=6", "evaluate.prompts=6",
                        "reward.certificate.min_accuracy=0.0"],
    "rlvr_grpo": ["online.rounds=3", "evaluate.prompts=6"],
    "rloo": ["online.rounds=2", "evaluate.prompts=6"],
    "ppo": ["online.rounds=2", "online.prompts_per_round=8", "evaluate.prompts=6"],
}


@pytest.mark.parametrize("recipe", SMALL)
def test_recipe_runs_small(recipe: str, tiny_home: Path) -> None:
    pipeline = Pipeline.open(recipe, home=tiny_home, profile="test", overrides=SMALL[recipe])
    pipeline.begin()
    for name in pipeline.stages:
        pipeline.make(name)
    assert all(s.state == "done" for s in pipeline.status())
    trained = [s for s in pipeline.stages.values() if s.does in ("sft", "optimise", "improve", "reward")]
    for stage in trained:
        meta = pipeline.artifact(stage.name).meta
        assert meta["steps"] > 0 and meta.get("reload_difference", 0) <= 1e-4 and meta["contract"]
    if "evaluate" in pipeline.stages:
        folder = pipeline.artifact("evaluate").path
        results = json.loads((folder / "results.json").read_text())
        assert results["metrics"] and (folder / "report.html").stat().st_size > 5_000


def test_every_tiny_recipe_is_smoked() -> None:
    from components.recipe import names

    assert set(SMALL) == set(names()) - {"chat", "chat_offline", "rlhf_workflow_8b"}  # real models
