"""Sections of an online phase as they are in a round, with the changes that the recipe has for it."""

from __future__ import annotations

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.correction import corrected_again
from ratchet.components.recipes.defaults import section_with_defaults
from ratchet.components.recipes.merging import merge
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.schema import Online, Recipe


def for_round(online: Online, number: int, section: str = "online") -> Online:
    """The section as applied in round `number`: `by_round: {2: {fit: {learning_rate: 1e-5}}}` changes round 2
    only. `section`: its path in the recipe.
    """
    change = online.by_round.get(str(number), {})
    if not change:
        return online
    where = f"{section}.by_round.{number}"
    merged = conform(Online, merge(plain(online), change), where)
    return corrected_again(section_with_defaults(merged, where), online)


def changed_rounds(recipe: Recipe) -> dict[str, dict[str, Online]]:
    """The section of each round with changes, by its path, of each online phase by its path."""
    found: dict[str, dict[str, Online]] = {}
    for phase in sections(recipe):
        if not isinstance(online := phase.section, Online):
            continue
        for number in online.by_round:
            if (
                not str(number).isdigit()
                or not 1 <= int(number) <= online.rounds
                or online.cadence != "round"
            ):
                raise RecipeError(
                    f"{phase.where}.by_round: round {number} does not exist; the recipe has rounds 1 to "
                    f"{online.rounds}"
                )
        found[phase.where] = {
            f"{phase.where}.by_round.{number}": for_round(online, int(number), phase.where)
            for number in online.by_round
        }
    return found
