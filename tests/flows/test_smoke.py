"""Every recipe runs end to end on the tiny model; a second run has nothing to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.components.data.groups import read_groups
from ratchet.components.evaluation.measured import per_prompt_metrics
from ratchet.components.piece import build
from ratchet.components.recipes.recipe import load, names
from ratchet.components.recipes.smoke import limited
from ratchet.components.recipes.yaml_files import folder, shipped
from ratchet.tasks.pipeline import Pipeline
from tests.shipped import shipped_recipe

TINY = [name for name in names() if shipped_recipe(name)[0].models["policy"].source.startswith("generate:")]
GENERAL = [name for name in TINY if shipped()[name].parent == folder()]
"""Those of the method families run in tests/flows/test_method_recipes.py."""


@pytest.mark.parametrize(
    "recipe",
    [
        name if name in GENERAL else pytest.param(name, marks=pytest.mark.slow)
        for name in TINY
        if shipped_recipe(name)[0].online
    ],
)
def test_the_data_of_a_recipe_suffice_for_its_rounds_as_it_ships(recipe: str, tiny_home: Path) -> None:
    pipeline = Pipeline.open(recipe, home=tiny_home, profile="test")
    for name in ("model_policy", "raw", "drafts", "curated"):
        pipeline.make(name)
    online = pipeline.recipe.online
    prompts = [
        group.prompt for group in read_groups(pipeline.artifact("curated").path / f"{online.data}.parquet")
    ]
    choose = build("prompts", online.prompts)
    assert (
        len(
            choose(prompts, count=online.prompts_per_round, round=online.rounds, rounds=online.rounds, seed=0)
        )
        == online.prompts_per_round
    )


@pytest.mark.slow
@pytest.mark.parametrize("recipe", TINY)
def test_a_recipe_runs_as_it_ships(recipe: str, tiny_home: Path) -> None:
    """With the sizes it ships with; the test below uses smaller ones."""
    pipeline = Pipeline.open(recipe, home=tiny_home, profile="cpu")
    pipeline.begin()
    for name in pipeline.stages:
        pipeline.make(name)
    assert all(s.state == "done" for s in pipeline.status())


def test_a_smoke_test_trains_models_that_start_later_than_its_last_round() -> None:
    recipe, _ = load("archer", overrides=["online.roles.critic.start=5"])
    assert recipe.online.start == 7
    online = limited(recipe, 24).online
    assert online.rounds == online.start == online.roles["critic"].start == 2


@pytest.mark.parametrize("recipe", GENERAL)
def test_a_recipe_runs_as_a_smoke_test(recipe: str, tiny_home: Path) -> None:
    pipeline = Pipeline.open(recipe, home=tiny_home, profile="test", limit=24)
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
        assert set(per_prompt_metrics(pipeline.recipe)) == results["per_prompt"].keys()
        assert results["metrics"] and (folder / "report.html").stat().st_size > 5_000
        models = pipeline.recipe.reward.reward_models if pipeline.recipe.reward else []
        assert list(results["certificates"]) == models and len(
            list((folder / "plots").glob("calibration*.png"))
        ) == len(models)
        assert (
            {"reward model"}
            if len(models) == 1
            else {name.replace("_", " ") for name in models} <= set(results["curves"])
        )
