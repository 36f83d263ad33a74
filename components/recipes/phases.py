"""The phases of a recipe in order: its sections, which are the short spelling of phases of those names, then
`phases`, with `cycle` written out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.components.labels.labels import SCORE
from ratchet.components.piece import describe
from ratchet.components.recipes.schema import (
    Demonstrate,
    Groups,
    Learn,
    Online,
    Preferences,
    Recipe,
    Reward,
)

Section = Demonstrate | Preferences | Learn | Reward | Online | Groups
SECTIONS = ("demonstrate", "sft", "preferences", "reward", "offline", "online")
"""Sections in the order of their phases."""
STEP = 1_000_003
"""Difference between the seeds of two passes of a cycle."""


@dataclass(frozen=True)
class Phase:
    """One phase. `name`: of its stages; `known_as`: what other phases call its product (a later pass of a
    cycle has a number in its name only); `where`: its path in the recipe; `turn`: pass of the cycle, from 1.
    """

    name: str
    known_as: str
    section: Section
    where: str
    turn: int = 1

    @property
    def of(self) -> str:
        return getattr(self.section, "of", "")

    @property
    def short(self) -> bool:
        """Whether it is a section of the recipe rather than an entry of `phases`."""
        return self.where == self.known_as

    @property
    def trains_policy(self) -> bool:
        return isinstance(self.section, Learn | Online)

    @property
    def advances(self) -> bool:
        return isinstance(self.section, Learn | Online) and self.section.advance

    @property
    def models(self) -> list[str]:
        """Names under which later pieces and phases use the models that it trains."""
        if isinstance(self.section, Reward):
            return self.section.models("reward_model" if self.short else self.known_as)
        return [self.known_as] if self.trains_policy else []

    @property
    def makes(self) -> list[str]:
        """Names of the data sets that it makes."""
        section = self.section
        if isinstance(section, Groups):
            return [self.known_as, *([f"{self.known_as}_validation"] if section.validation else [])]
        if isinstance(section, Demonstrate | Preferences):
            kinds = [kind for kind, specs in selectors(section).items() if specs]
            return [f"{kind}{end}" for kind in kinds for end in ("", "_validation")]
        return []

    def seed(self, default: int) -> int:
        """The seed of this pass; `default`: the recipe's."""
        own = self.section.seed
        return ((default if own is None else own) + STEP * (self.turn - 1)) % 2**32


def selectors(section: Demonstrate | Preferences) -> dict[str, Any]:
    """Kind of data set -> selectors that make it."""
    if isinstance(section, Preferences):
        return {"reward": section.select}
    return {"sft": section.sft, "reward": section.reward}


def asks_people(online: Online) -> Mapping[str, Any] | None:
    """The annotator that reads the scores of people, which the stage `ask` of a round makes; None without
    one.
    """
    return next((spec for spec in online.annotate if SCORE in describe("annotate", spec["name"]).reads), None)


def phases(recipe: Recipe) -> list[Phase]:
    """Every phase in order, with the passes of the cycle as phases of their own."""
    once = sections(recipe)
    names = [one.name for one in once]
    if not recipe.cycle or recipe.cycle[0] not in names:
        return once
    start = names.index(recipe.cycle[0])
    end = start + len(recipe.cycle)
    repeated = [
        dataclasses.replace(one, name=one.name if turn == 1 else f"{one.name}_{turn}", turn=turn)
        for turn in range(1, recipe.cycles + 1)
        for one in once[start:end]
    ]
    return [*once[:start], *repeated, *once[end:]]


def sections(recipe: Recipe) -> list[Phase]:
    """Every phase in order, each once."""
    short = [(name, getattr(recipe, name), name) for name in SECTIONS]
    long = [(name, section, f"phases.{name}") for name, section in (recipe.phases or {}).items()]
    return [Phase(name, name, section, at) for name, section, at in (*short, *long) if section is not None]


def with_sections(recipe: Recipe, change: Callable[[Any, str], Any]) -> Recipe:
    """The recipe with each section and phase replaced by `change(section, path)`."""
    made = {one.where: change(one.section, one.where) for one in sections(recipe)}
    further = {name: made[f"phases.{name}"] for name in recipe.phases or {}}
    return dataclasses.replace(
        recipe,
        **{name: made[name] for name in SECTIONS if name in made},
        **({"phases": further} if further else {}),
    )


def section_at(recipe: Recipe, where: str) -> Any:
    """The section at a path of `Phase.where`."""
    head, _, name = where.partition(".")
    return recipe.phases[name] if name and recipe.phases else getattr(recipe, head)


def initial_phase(recipe: Recipe) -> Phase | None:
    """The phase whose policy evaluation calls SFT: the section `sft`, else the first entry of `phases` that
    learns and advances. None: the base model.
    """
    found = phases(recipe)
    named = next((one for one in found if one.where == "sft"), None)
    learned = [one for one in found if not one.short and one.advances and isinstance(one.section, Learn)]
    return named or next(iter(learned), None)


def improves(recipe: Recipe) -> bool:
    """Whether a phase advances the policy further than `initial_phase`."""
    found, start = [one for one in phases(recipe) if one.advances], initial_phase(recipe)
    return bool(found) and (start is None or found[-1] != start)


def has_three_arms(recipe: Recipe) -> bool:
    """Whether base, SFT and final policy differ."""
    return initial_phase(recipe) is not None and improves(recipe)
