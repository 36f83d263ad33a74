"""Every recipe of a method with a claim runs two small steps through all of its stages."""

from pathlib import Path

import pytest

from ratchet.components.recipes.recipe import load, names
from ratchet.components.recipes.yaml_files import folder, shipped
from ratchet.tasks.pipeline import Pipeline

METHODS = [name for name in names() if shipped()[name].parent != folder() and load(name)[0].claim]


@pytest.mark.parametrize("name", METHODS)
def test_a_recipe_runs_two_steps(name: str, tiny_home: Path) -> None:
    recipe, _ = load(name)
    changes = ["evaluate.prompts=3", "evaluate.responses_per_prompt=2"]
    if recipe.online:
        changes += ["online.rounds=2", "online.prompts_per_round=4", "online.rollout.max_tokens=8"]
        changes += ["online.fit.epochs=1"]
    if recipe.offline:
        changes += ["offline.limit=8", "offline.fit.epochs=1"]
    run = Pipeline.open(name, home=tiny_home, profile="test", overrides=changes)
    for stage in run.stages:
        run.make(stage)
    assert recipe.claim is not None
    if recipe.claim.per == "curve":
        logged = run.artifact("improve").path / "metrics.jsonl"
        assert recipe.claim.metric in logged.read_text()
    else:
        assert recipe.claim.metric in run.artifact("evaluate").meta
