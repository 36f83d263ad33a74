"""Every recipe of a method family runs two small steps through all of its stages."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment
from reasoning_gym import factory

from benchmarks.short_runs import WHOLE_SFT, small_steps
from ratchet.components.evaluation import plots, scoring
from ratchet.components.recipes.recipe import names
from ratchet.components.recipes.yaml_files import folder, shipped
from ratchet.components.stages import ask
from ratchet.tasks.data import validation
from ratchet.tasks.pipeline import Pipeline
from tests.shipped import shipped_recipe

METHODS = [
    name
    for name in names()
    for recipe in [shipped_recipe(name)[0]]
    if shipped()[name].parent != folder() and recipe.models["policy"].source.startswith("generate:")
]
LABELS = [name for name in names() if shipped()[name].parent.name == "labels"]


SLOW = {"ensemble_worst_case", "ensemble_uncertainty", "reward_robust", *WHOLE_SFT}
"""Recipes whose pieces others here run in less time, and those that need a whole SFT."""


TEMPLATES: dict[tuple[type, str], Any] = {}
"""Compiled templates by class of environment and source text."""


@pytest.fixture
def plain_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less time for what other tests have: plots are empty files, and the validation writes no pages; a
    template is compiled once, a scorer of reasoning-gym is made once, and a queue is looked at often.
    """

    def empty(figure: object, path: Path) -> Path:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        return path

    compile_template = Environment.compile

    def compile_once(self: Environment, source: str, *options: Any) -> Any:
        key = (type(self), source)
        if key not in TEMPLATES:
            TEMPLATES[key] = compile_template(self, source, *options)
        return TEMPLATES[key]

    monkeypatch.setattr(plots, "save_figure", empty)
    monkeypatch.setattr(validation, "_write_docs", lambda context, docs: None)
    monkeypatch.setattr(Environment, "compile", compile_once)
    monkeypatch.setattr(factory, "get_score_answer_fn", functools.cache(factory.get_score_answer_fn))
    monkeypatch.setattr(ask, "POLL", 0.01)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in METHODS]
)
def test_a_recipe_runs_two_steps(name: str, tiny_home: Path, plain_pages: None) -> None:
    recipe, _ = shipped_recipe(name)
    changes, policy = small_steps(recipe), recipe.models["policy"].source
    if policy.startswith("generate:tiny_vision"):
        changes.append(f"models.policy={{source: '{policy}&steps=1', format: tiny}}")
    run = Pipeline.open(name, home=tiny_home, profile="test", overrides=changes)
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


@pytest.mark.parametrize("name", LABELS)
def test_a_recipe_that_chooses_labels_runs_on_the_tiny_model(
    name: str, tiny_home: Path, plain_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SmolLM2 and the conversations are left out: the tiny model answers openers with an instruction each.
    The seed of the run draws the experiment of its measure.
    """
    seeds = set[int]()

    def measures_of(*given: Any) -> Any:
        seeds.update(context.seed for context in given[-1].values())
        return scoring.measures_of(*given)

    monkeypatch.setattr("ratchet.components.stages.evaluate.measures_of", measures_of)
    recipe, _ = shipped_recipe(name)
    assert recipe.evaluate is not None
    (measure,) = recipe.evaluate.measures
    asked = "{transforms: [{name: instruct}], limit: 40}"
    changes = {
        "seed": "7",
        "models": "{policy: {source: 'generate:tiny?seed=0', format: tiny}, encoder: null}",
        "data": f"{{source: 'generate:tiny_openers?seed=1', sha256: null, parser: null, transforms: [], "
        f"min_groups: 1, min_topics: null, max_topic_share: null, near_threshold: null, decontaminate: null, "
        f"{', '.join(f'{split}: {asked}' for split in recipe.data.splits)}}}",
        "demonstrate.rollout": "{name: sample, responses_per_prompt: 4, max_tokens: 16}",
        "sft.fit": "{epochs: 1, min_ended: 0.0}",
        "evaluate.measures": json.dumps([{**measure, "batch": 2, "budget": 8}]),
    }
    run = Pipeline.open(
        name, home=tiny_home, profile="test", overrides=[f"{key}={value}" for key, value in changes.items()]
    )
    for stage in run.stages:
        run.make(stage)
    assert 0 < run.artifact("evaluate").meta["final.labels_needed"] <= 10 and seeds == {7}
