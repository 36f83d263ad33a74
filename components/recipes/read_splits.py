"""Curated splits that a recipe reads."""

from __future__ import annotations

from ratchet.components.recipes.arms import arms
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.reward_models import certified
from ratchet.components.recipes.schema import Recipe


def splits_read(recipe: Recipe) -> dict[str, str]:
    """Curated splits that phases and evaluation read, by the key that names them."""
    read: dict[str, str | None] = {}
    made: set[str] = set()
    for phase in sections(recipe):
        made_first = recipe.demonstrate is not None and phase.where in ("sft", "reward")
        for key in ("also",) if made_first else ("data", "validation", "also"):
            name = getattr(phase.section, key, None)
            if name not in made:
                read[f"{phase.where}.{key}"] = name
        made |= set(phase.makes)
    if recipe.evaluate:
        own = recipe.evaluate.arms or {}
        for name, arm in arms(recipe).items():
            at = f"evaluate.arms.{name}.data" if name in own and own[name].data else "evaluate.data"
            read[at] = arm.data
        if recipe.evaluate.gold:
            read |= {"evaluate.gold": "gold", "evaluate.gold (its certificate)": "gold_validation"}
    return {where: name for where, name in read.items() if name}


def read_splits(recipe: Recipe) -> set[str]:
    """Every split that a stage reads."""
    return {*splits_read(recipe).values(), *(["reward_validation"] if certified(recipe) else [])}
