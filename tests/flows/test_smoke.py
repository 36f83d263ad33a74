"""Every recipe over the tiny model runs from its data to its end, small; a second run has nothing to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.data.groups import read_groups
from components.piece import build
from components.recipe import load, names
from tasks.pipeline import Pipeline

SMALL = {  # of whatever sections a recipe has
    "sft": ["sft.limit=48"],
    "reward": ["reward.limit=64", "reward.limit_validation=24", "reward.certificate.min_accuracy=null"],
    "offline": ["offline.limit=32"],
    "online": ["online.rounds=2", "online.prompts_per_round=6"],
    "evaluate": ["evaluate.prompts=6"],
}


def small(recipe: str) -> list[str]:
    loaded, _ = load(recipe)
    return [change for section, changes in SMALL.items() if getattr(loaded, section) for change in changes]


TINY = [name for name in names() if load(name)[0].models["policy"].source.startswith("generate:")]


@pytest.mark.parametrize("recipe", [name for name in TINY if load(name)[0].online])
def test_the_data_of_a_recipe_suffice_for_its_rounds_as_it_ships(recipe: str, tiny_home: Path) -> None:
    pipeline = Pipeline.open(recipe, home=tiny_home, profile="test")
    for name in ("model_policy", "raw", "drafts", "curated"):
        pipeline.make(name)
    online = pipeline.recipe.online
    prompts = [group.prompt for group in read_groups(pipeline.artifact("curated").path / f"{online.data}.parquet")]
    choose = build("prompts", online.prompts)
    assert len(choose(prompts, count=online.prompts_per_round, round=online.rounds, rounds=online.rounds, seed=0)) == online.prompts_per_round


@pytest.mark.slow
@pytest.mark.parametrize("recipe", TINY)
def test_a_recipe_runs_as_it_ships(recipe: str, tiny_home: Path) -> None:
    """With its own sizes, which the tests beside this one make smaller: what `ratchet run` does for whoever tries it."""
    pipeline = Pipeline.open(recipe, home=tiny_home, profile="cpu")
    pipeline.begin()
    for name in pipeline.stages:
        pipeline.make(name)
    assert all(s.state == "done" for s in pipeline.status())


@pytest.mark.parametrize("recipe", TINY)
def test_recipe_runs_small(recipe: str, tiny_home: Path) -> None:
    pipeline = Pipeline.open(recipe, home=tiny_home, profile="test", overrides=small(recipe))
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
        judges = pipeline.recipe.reward.judges if pipeline.recipe.reward else []
        assert list(results["certificates"]) == judges and len(list((folder / "plots").glob("calibration*.png"))) == len(judges)
        assert {"reward model"} if len(judges) == 1 else {name.replace("_", " ") for name in judges} <= set(results["curves"])
