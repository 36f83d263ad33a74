"""Sections of an online phase as they are in a round, with the changes that the recipe has for it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.correction import corrected_again
from ratchet.components.recipes.defaults import section_with_defaults
from ratchet.components.recipes.merging import merge
from ratchet.components.recipes.phases import Section, sections
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.schema import Online, Recipe

WHOLE = ("data", "rounds", "cadence", "of", "seed", "advance", "does", "by_round")
"""Keys of an online phase that its rounds share."""


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
        for number, change in online.by_round.items():
            at = f"{phase.where}.by_round"
            if (
                not re.fullmatch(r"[1-9][0-9]*", number)
                or int(number) > online.rounds
                or online.cadence != "round"
            ):
                raise RecipeError(
                    f"{at}: round {number} does not exist; the recipe has rounds 1 to {online.rounds}"
                )
            if shared := next((key for key in WHOLE if key in change), None):
                raise RecipeError(
                    f"{at}.{number}.{shared}: every round has the same; set {phase.where}.{shared}, or write "
                    "a phase of its own for these rounds"
                )
        found[phase.where] = {
            f"{phase.where}.by_round.{number}": for_round(online, int(number), phase.where)
            for number in online.by_round
        }
        _check_prompts(online, found[phase.where])
    return found


def with_rounds(recipe: Recipe) -> list[tuple[str, Section]]:
    """Path and section of each phase, and of each round that changes an online phase."""
    changed = changed_rounds(recipe)
    return [
        one
        for phase in sections(recipe)
        for one in [(phase.where, phase.section), *changed.get(phase.where, {}).items()]
    ]


def _check_prompts(online: Online, rounds: Mapping[str, Online]) -> None:
    """`disjoint` counts off its prompts in rounds of one size."""
    every = [*rounds.values(), *([online] if len(rounds) < online.rounds else [])]
    counts = {one.prompts_per_round for one in every}
    if len(counts) > 1 and any(one.prompts["name"] == "disjoint" for one in every):
        where = next(
            at for at, one in rounds.items() if "prompts_per_round" in online.by_round[at.rpartition(".")[2]]
        )
        raise RecipeError(
            f"{where}.prompts_per_round: with the prompts `disjoint` expected one number for all rounds, got "
            f"{' and '.join(map(str, sorted(counts)))}, whose rounds would repeat prompts; remove it, "
            "or choose `prompts: {name: uniform}`"
        )
