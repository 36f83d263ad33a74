"""The pieces of a recipe: their equations, options and papers, and what a recipe changes against its base."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ratchet.components.piece import SLOTS, Description, catalogue
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.schema import Recipe
from ratchet.components.recipes.yaml_files import read_yaml, shipped
from ratchet.flows.piece_catalogue import first_paragraph

METHOD_SLOTS = ("annotate", "select", "objective", "rollout", "adapter", "reference", "schedule", "transform")
"""Slots whose pieces make a method; data, environments and model families are what it is tried on."""
EVALUATION_SLOTS = ("report", "measure")
WITHOUT_EQUATION = ("sample", "scoring.logprobs", "full")
"""Pieces of nearly every recipe that compute nothing of a method's own."""
SLOT_OF_KEY = {
    "updates": "objective",
    "prompts": "prompts",
    "select": "select",
    "measures": "measure",
    "environment": "environment",
    "source": "testbed",
}
"""Key of a recipe -> slot of the pieces below it, for names that several slots have."""


def yaml_line(value: Any) -> str:
    """A value as YAML on one line, as a recipe has it: `[{name: reinforce}]`, `null`."""
    text = yaml.safe_dump(plain(value), default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("...\n").strip()


def equations(recipe: Recipe) -> dict[str, str]:
    """Piece -> the first paragraph of its documentation, which has its equation, the method's own first: the
    pieces from the recipe's paper, else those that its file names and its base does not; then objectives and
    the advantages they read. A recipe that trains nothing has its rollouts, else its measures and reports.
    """
    training, whole = _of_training(recipe), _used(plain(recipe))
    own = _of_paper(recipe, training, METHOD_SLOTS) or _of_paper(recipe, whole, EVALUATION_SLOTS)
    if not own:
        written = set(_texts(list(own_keys(recipe.name).values())))
        own = [name for name in _of(training, *METHOD_SLOTS) if name in written]
    learned = _of(training, "objective") + [name for name in training if name.startswith("advantages.")]
    shown = [*own, *learned] or _of(training, "rollout") or _of(whole, *EVALUATION_SLOTS)
    return {
        name: first_paragraph(whole[name]) for name in dict.fromkeys(shown) if name not in WITHOUT_EQUATION
    }


def _of_paper(recipe: Recipe, used: Mapping[str, Description], slots: tuple[str, ...]) -> list[str]:
    """Names of the pieces that have the recipe's paper, or cite it in their documentation."""
    cited = recipe.paper.replace(":", " ")
    return [name for name in _of(used, *slots) if used[name].paper == recipe.paper or cited in used[name].doc]


def _of(used: Mapping[str, Description], *slots: str) -> list[str]:
    return [name for name, one in used.items() if one.slot in slots and name not in WITHOUT_EQUATION]


def _of_training(recipe: Recipe) -> dict[str, Description]:
    """The pieces of a recipe without the measures, reports and metrics of its evaluation."""
    value = plain(recipe)
    evaluation = value.get("evaluate") or {}
    arms = {key: evaluation.get(key) for key in ("rollout", "arms", "best_of")}
    return _used({**value, "evaluate": arms})


def options_of(recipe: Recipe) -> dict[str, tuple[list[tuple[str, Any, Any]], str]]:
    """Piece with options -> (option, value in the recipe, default of the piece) of each, and the piece's
    paper.
    """
    used = dict[str, tuple[list[tuple[str, Any, Any]], str]]()
    for name, described, spec in pieces_in(plain(recipe)):
        options = [
            (key, spec[key], spec[key] if option.required else option.default)
            for key, option in described.options.items()
            if key in spec
        ]
        if options and name not in used:
            used[name] = (options, described.paper)
    return used


def _used(value: Any) -> dict[str, Description]:
    """The pieces of a recipe by name, in its order; of two with one name the first."""
    used = dict[str, Description]()
    for name, described, _ in pieces_in(value):
        used.setdefault(name, described)
    return used


def pieces_in(value: Any) -> Iterator[tuple[str, Description, Mapping[str, Any]]]:
    """Name, declarations and options of each piece of a recipe. A name of several slots (`uniform`, `kl`) is
    of the slot that the enclosing keys name.
    """
    slots = {slot: catalogue(slot) for slot in SLOTS}
    for name, spec, keys in _specs(value):
        known = [slot for slot in slots if name in slots[slot]]
        named = [slot for slot in known if slot in {SLOT_OF_KEY.get(key) for key in keys}]
        for slot in (named or known)[:1]:
            yield name, slots[slot][name], spec


def _specs(
    value: Any, keys: tuple[str, ...] = ()
) -> Iterator[tuple[str, Mapping[str, Any], tuple[str, ...]]]:
    """Every piece of a recipe with its options and the keys that enclose it, in the order of the recipe, but
    for the claim: a mapping with a `name`, or an address `generate:NAME`.
    """
    if isinstance(value, Mapping):
        if isinstance(value.get("name"), str):
            yield value["name"], value, keys
        for key, inner in value.items():
            if key != "claim":
                yield from _specs(inner, (*keys, str(key)))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _specs(inner, keys)
    elif isinstance(value, str) and value.startswith("generate:"):
        yield value.removeprefix("generate:").partition("?")[0], {}, keys


def own_keys(name: str) -> dict[str, Any]:
    """What a shipped recipe changes against its base, as dotted keys; empty for a user's recipe."""
    path = shipped().get(name)
    if path is None:
        return {}
    raw = read_yaml(path, "")
    not_settings = ("schema", "base", "about", "paper", "claim", "name")
    return dict(_dotted({key: value for key, value in raw.items() if key not in not_settings}))


def _texts(value: Any) -> Iterator[str]:
    """Every text of a part of a recipe, the names of pieces among them."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts(inner)


def _dotted(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and "name" not in value:
        for key, inner in value.items():
            yield from _dotted(inner, f"{where}.{key}".lstrip("."))
    else:
        yield where, value


def pieces(recipe: Recipe) -> list[str]:
    """The pieces that a recipe names, with their papers."""
    used = _used(plain(recipe))
    return [f"{name} ({one.paper})" if one.paper else name for name, one in used.items()]
