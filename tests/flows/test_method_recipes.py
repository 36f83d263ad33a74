"""Every recipe of a method family runs two small steps through all of its stages."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.evaluation import plots
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.recipe import names
from ratchet.components.recipes.schema import Groups, Learn, Online, Recipe, Reward
from ratchet.components.recipes.yaml_files import folder, shipped
from ratchet.tasks.data import validation
from ratchet.tasks.pipeline import Pipeline
from tests.shipped import shipped_recipe

METHODS = [
    name
    for name in names()
    for recipe in [shipped_recipe(name)[0]]
    if shipped()[name].parent != folder()
    and (recipe.claim or recipe.models["policy"].source.startswith("generate:"))
]


def smaller(recipe: Recipe) -> list[str]:
    """Overrides that leave every stage and make each small: two steps, few prompts, one tiny model."""
    changes = ["evaluate.prompts=3", "evaluate.responses_per_prompt=4"]
    others = [name for name, model in recipe.models.items() if name != "policy" and model.format == "tiny"]
    changes += ["models.policy={source: 'generate:tiny?seed=0', format: tiny}"]  # that of `tiny_home`
    changes += [f"models.{name}={{source: 'generate:tiny?seed=0&steps=1', format: tiny}}" for name in others]
    if recipe.name not in WHOLE_SFT:
        changes += [f"data.source={re.sub(r'(?<=size=)[0-9]{4,}', '400', recipe.data.source)!r}"]
    if recipe.sft and recipe.name not in WHOLE_SFT:
        changes += ["sft.limit=8", "sft.fit.epochs=1", "sft.fit.min_ended=0.0"]
    if recipe.preferences:
        of = recipe.preferences
        changes += [f"data.{of.data}.limit={12 if of.data == 'preferences' else 40}"]
        responses = min(4, of.rollout.get("responses_per_prompt", 4))
        changes += [f"preferences.rollout.responses_per_prompt={responses}"]
    for phase in sections(recipe):
        at, section = phase.where, phase.section
        if isinstance(section, Online):
            changes += [f"{at}.rounds=2", f"{at}.prompts_per_round=4", f"{at}.fit.epochs=1"]
            changes += [f"{at}.start=2"] * (section.start > 2)
            changes += [f"{at}.rollout.max_tokens={min(8, section.rollout['max_tokens'])}"]
            changes += [f"{at}.select={replaying_less(section.select)}"]
            for role, settings in section.roles.items():
                changes += [f"{at}.roles.{role}.select={replaying_less(settings.select)}"]
        elif isinstance(section, Reward):
            changes += [f"{at}.limit=8", f"{at}.limit_validation=4", f"{at}.fit.epochs=1"]
            changes += [f"{at}.certificate.min_accuracy=null"]
        elif isinstance(section, Groups):
            changes += [f"data.{section.data}.limit=40"]
        elif isinstance(section, Learn) and at != "sft":
            changes += [f"{at}.limit=8", f"{at}.fit.epochs=1"]
    arms = (recipe.evaluate.arms if recipe.evaluate else None) or {}
    changes += [f"evaluate.arms.{name}.best_of.n=2" for name, arm in arms.items() if arm.best_of]
    return changes


def replaying_less(specs: Sequence[Mapping[str, Any]]) -> str:
    """Selectors of which each draws at most 16 groups from its memory."""
    drawn = [{"count": min(16, spec["count"])} if "count" in spec else {} for spec in specs]
    return json.dumps([{**spec, **less} for spec, less in zip(specs, drawn, strict=True)])


WHOLE_SFT = {
    "loop",
    "loop_grpo",
    "loop_rejection",
    "rest_mcts",
    "rest_mcts_best_of",
    "rest_mcts_rejection",
    "rlhs",
    "rlhs_immediate",
}
"""Recipes whose policy must have learned to answer, or all answers get one reward and none is selected."""
SLOW = {"ensemble_worst_case", "ensemble_uncertainty", "reward_robust", *WHOLE_SFT}
"""Recipes whose pieces others here run in less time, and those that need a whole SFT."""


@pytest.fixture
def plain_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are empty files, and the validation writes no pages (their tests are elsewhere): drawing would
    take half of the time.
    """

    def empty(figure: object, path: Path) -> Path:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        return path

    monkeypatch.setattr(plots, "_save", empty)
    monkeypatch.setattr(validation, "_write_docs", lambda context, docs: None)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in METHODS]
)
def test_a_recipe_runs_two_steps(name: str, tiny_home: Path, plain_pages: None) -> None:
    recipe, _ = shipped_recipe(name)
    run = Pipeline.open(name, home=tiny_home, profile="test", overrides=smaller(recipe))
    for stage in run.stages:
        run.make(stage)
    if recipe.claim is None:
        assert all(stage.state == "done" for stage in run.status())
    elif recipe.claim.per == "curve":
        logged = run.artifact("improve").path / "metrics.jsonl"
        assert recipe.claim.metric in logged.read_text()
    else:
        report = run.artifact("evaluate")
        undefined = json.loads((report.path / "results.json").read_text())["undefined"]
        assert {recipe.claim.metric, f"{recipe.claim.metric}.mean"} & {*report.meta, *undefined}
