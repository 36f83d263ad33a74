"""Overrides that leave every stage of a recipe of the tiny model and make each small, for tests of recipes
and for `carry_claims`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.schema import Groups, Learn, Online, Recipe, Reward
from ratchet.components.recipes.splits import kind_of

WHOLE_SFT = {
    "dapo",
    "dapo_without_overlong",
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


def small_steps(recipe: Recipe) -> list[str]:
    """Overrides that leave every stage and make each small: two steps, few prompts, one tiny model."""
    changes = ["evaluate.prompts=3", "evaluate.responses_per_prompt=4"]
    others = [name for name, model in recipe.models.items() if name != "policy" and model.format == "tiny"]
    policy = recipe.models["policy"]
    if policy.format == "tiny" and not policy.source.startswith("generate:tiny_vision"):
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
            longest = section.rollout.get("max_tokens")  # none for a policy of arrays
            changes += [f"{at}.rollout.max_tokens={min(8, longest)}"] if longest else []
            changes += [f"{at}.select={replaying_less(section.select)}"]
            for role, settings in section.roles.items():
                changes += [f"{at}.roles.{role}.select={replaying_less(settings.select)}"]
        elif isinstance(section, Reward):
            changes += [f"{at}.limit=8", f"{at}.limit_validation=4", f"{at}.fit.epochs=1"]
            changes += [f"{at}.certificate.min_accuracy=null"]
        elif isinstance(section, Groups) and section.data in (recipe.data.splits or {}):
            changes += [f"data.{kind_of(section.data)}.limit=40"]
        elif isinstance(section, Learn) and at != "sft":
            changes += [f"{at}.limit=8", f"{at}.fit.epochs=1"]
    arms = (recipe.evaluate.arms if recipe.evaluate else None) or {}
    changes += [f"evaluate.arms.{name}.best_of.n=2" for name, arm in arms.items() if arm.best_of]
    return changes


def replaying_less(specs: Sequence[Mapping[str, Any]]) -> str:
    """Selectors of which each draws at most 16 groups from its memory."""
    drawn = [{"count": min(16, spec["count"])} if "count" in spec else {} for spec in specs]
    return json.dumps([{**spec, **less} for spec, less in zip(specs, drawn, strict=True)])
