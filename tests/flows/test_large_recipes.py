"""The recipes of large models run two small steps on the tiny model, on generated conversations."""

from pathlib import Path

import pytest

from ratchet.components.recipes.recipe import names
from ratchet.tasks.pipeline import Pipeline
from tests.flows.test_method_recipes import LABELS, METHODS, plain_pages
from tests.flows.test_published_recipes import RECIPES as PUBLISHED
from tests.shipped import shipped_recipe

CHAT = ["chat", "chat_offline", "rlhf_workflow_8b"]
INSTRUCT = [name for name in names() if name == "instruct" or name.startswith("instruct_")]
NOT_RUN: dict[str, str] = {}
"""Recipe -> why it cannot run on the tiny model."""
CHAT_SPLITS = ("sft", "prompts", "evaluate", "reward", "gold")
POLICY = "{source: 'generate:tiny?seed=0', sha256: null, format: tiny, shape: null}"
SMALL = {
    "sft.limit": "8",
    "sft.limit_validation": "4",
    "sft.fit": "{epochs: 1, batch: 4, min_ended: 0.0, validate_every: 0, adapter: {name: full}}",
    "online.rounds": "2",
    "online.prompts_per_round": "4",
    "online.health": "null",
    "evaluate.prompts": "3",
    "register": "null",
}
LIMITS = (
    "near_threshold: null, decontaminate: null, min_groups: 1, min_topics: null, max_topic_share: null, "
    "max_quarantined: 0.2"
)

__all__ = ["plain_pages"]


def run(name: str, home: Path, changes: dict[str, str]) -> None:
    """Every stage of a recipe, with the overrides of sections that it has."""
    recipe, _ = shipped_recipe(name)
    kept = {
        key: value for key, value in changes.items() if getattr(recipe, key.partition(".")[0]) is not None
    }
    overrides = [f"{key}={value}" for key, value in kept.items()]
    pipeline = Pipeline.open(name, home=home, profile="test", overrides=overrides)
    for stage in pipeline.stages:
        pipeline.make(stage)
    assert all(stage.state == "done" for stage in pipeline.status())
    trained = [
        one for one in pipeline.stages.values() if one.does in ("sft", "optimise", "improve", "reward")
    ]
    assert trained and all(pipeline.artifact(one.name).meta["steps"] > 0 for one in trained)


@pytest.mark.parametrize("name", CHAT)
def test_a_recipe_of_conversations_runs_two_steps(name: str, tiny_home: Path, plain_pages: None) -> None:
    """The reward model is trained whole, as the tiny model has too few layers for those of the recipe."""
    changes = {
        **SMALL,
        "models": f"{{policy: {POLICY}, encoder: null}}",
        "data": "{source: 'generate:tiny_pairs?size=600&seed=1', sha256: null, parser: null, "
        "transforms: [duplicates], "
        f"rating_range: null, {LIMITS}, {', '.join(f'{split}: null' for split in CHAT_SPLITS)}, "
        "splits: {sft: 0.15, sft_validation: 0.05, reward: 0.3, reward_validation: 0.2, prompts: 0.2, "
        "evaluate: 0.1}}",
        "reward": "{layers: null, linear_probe: false, limit: 16, limit_validation: 8, max_tokens: 128, "
        "certificate: {min_accuracy: null, max_ties: null}, fit: {epochs: 1, batch: 8}}",
        "online.rollout": "{responses_per_prompt: 4, max_tokens: 8}",
        "online.prompts_per_round": "4",
        "online.watch": "{gold: false, kl_prompts: 2}",
        "online.fit": "{batch: 4, epochs: 1, adapter: {name: full}}",
        "evaluate.max_tokens": "8",
        "evaluate.gold": "false",
        "claim": "null",
    }
    run(name, tiny_home, changes)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "instruct_people" else name for name in INSTRUCT],
)
def test_a_recipe_of_verifiable_instructions_runs_two_steps(
    name: str, tiny_home: Path, plain_pages: None
) -> None:
    """The tiny model answers openers with an instruction each."""
    recipe, _ = shipped_recipe(name)
    asked = "{transforms: [{name: instruct}], limit: 64}"
    assert recipe.data.splits is not None
    changes = {
        **SMALL,
        "models": f"{{policy: {POLICY}, encoder: null}}",
        "data": "{source: 'generate:tiny_openers?seed=1', sha256: null, parser: null, transforms: [], "
        f"{LIMITS}, {', '.join(f'{split}: {asked}' for split in recipe.data.splits)}}}",
        "demonstrate.rollout": "{name: sample, responses_per_prompt: 4, max_tokens: 16}",
        "preferences.rollout": "{responses_per_prompt: 4, max_tokens: 16}",
        "reward": "{layers: null, certificate: {min_accuracy: null, min_accuracy_by_kind: null, "
        "best_of_n_rises: null, max_ties: null, min_pairs: 1}, fit: {epochs: 1}}",
        "online.rollout": "{responses_per_prompt: 4, max_tokens: 16}",
        "online.prompts_per_round": "24",
        "evaluate.max_tokens": "16",
        "evaluate.responses_per_prompt": "1",
        "evaluate.measures": "[fluency, ending, repetition, copying, personal_data]",
    }
    run(name, tiny_home, changes)


def test_every_recipe_of_a_large_model_runs_here_or_says_why_not() -> None:
    """Recipes of the tiny model run in `test_method_recipes` and in the tests of the stages."""
    large = {n for n in names() if not shipped_recipe(n)[0].models["policy"].source.startswith("generate:")}
    assert large - {*METHODS, *LABELS, *CHAT, *INSTRUCT, *PUBLISHED} == NOT_RUN.keys()
