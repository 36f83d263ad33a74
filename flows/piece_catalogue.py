"""The pieces that a recipe can name, by slot: what `ratchet recipes pieces` prints, and what the page of
pieces of the documentation has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.piece import SLOTS, Description, catalogue
from ratchet.components.recipes.piece_source import Option

NAMED_IN = {
    "annotate": "annotate, prepare and fresh of a section, evaluate.metrics",
    "select": "select of a section, demonstrate.sft and demonstrate.reward",
    "objective": "fit.updates of a section",
    "rollout": "rollout of a section, of the evaluation and of an arm",
    "prompts": "online.prompts",
    "adapter": "fit.adapter of a section",
    "reference": "online.reference, target of a role",
    "schedule": "in place of a number of an objective, such as its weight",
    "parser": "data.parser",
    "transform": "data.transforms, transforms of a split of prompts",
    "measure": "evaluate.measures",
    "report": "evaluate.reports",
    "environment": "environment of a rollout",
    "array_environment": "environment of the rollout control",
    "family": "models.NAME.source, as generate:NAME",
    "testbed": "data.source, as generate:NAME",
    "health": "online.health, with limit and action",
}
"""Slot -> keys of a recipe that name its pieces."""


def pieces_of(slot: str) -> Mapping[str, Description]:
    """The pieces of a slot, or of one of its folders (`rewards`), by their names in recipes. `RecipeError`
    with the nearest name for another word.
    """
    if slot in SLOTS:
        return catalogue(slot)
    for name, folders in SLOTS.items():
        if slot in folders:
            return {piece: one for piece, one in catalogue(name).items() if one.path.parent.name == slot}
    known = [*SLOTS, *(folder for folders in SLOTS.values() for folder in folders)]
    raise RecipeError(f"no slot or folder of pieces named {slot!r}{nearest(slot, known)}")


def first_paragraph(one: Description) -> str:
    """The first paragraph of a piece's documentation on one line, which has its equation."""
    return " ".join(one.doc.partition("\n\n")[0].split(">>>")[0].split())


def headline(one: Description) -> str:
    """The first sentence of a piece's documentation."""
    return re.split(r"(?<=\.)(?<!Dr\.)\s+(?=[A-Z`])", first_paragraph(one))[0]


def option_text(option: Option) -> tuple[str, str]:
    """An option's name with its type, and its default or `required`.

    >>> option_text(Option("beta", "Positive", 0.1))
    ('beta: Positive', '0.1')
    """
    return f"{option.name}: {option.annotation}", "required" if option.required else f"{option.default!r}"


def lines_of(slot: str) -> Iterator[str]:
    """A line for each piece of a slot or folder, and a line with its options if it has some."""
    for name, one in pieces_of(slot).items():
        yield f"{name}: {headline(one)}"
        options = [
            f"{declared} ({value})" if value == "required" else f"{declared} = {value}"
            for declared, value in map(option_text, one.options.values())
        ]
        if options:
            yield f"    {', '.join(options)}"
