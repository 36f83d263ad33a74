"""The recipes that ship, each loaded once."""

from __future__ import annotations

import functools

from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.schema import Recipe


@functools.cache
def shipped_recipe(name: str) -> tuple[Recipe, Profile]:
    """The recipe and its profile, without overrides."""
    return load(name)
