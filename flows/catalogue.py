"""The catalogue of recipes: families, what a recipe is in five lines, and its difference from its base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ratchet.components.piece import SLOTS, catalogue, models_of
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.recipe import plain
from ratchet.components.recipes.schema import Online, Recipe, Reward
from ratchet.components.recipes.yaml_files import read_yaml, shipped
from ratchet.flows.claim_records import Verdict, effect, key_of, sentence

FAMILIES = (
    "Supervised fine-tuning",
    "Reward modelling",
    "Decoding",
    "Offline preference learning",
    "Online preference learning, in rounds",
    "Policy gradient, in on-policy steps",
)


def family(recipe: Recipe) -> str:
    """Family of a recipe: decoding, else by the last thing that it trains."""
    if _decodes(recipe):
        return FAMILIES[2]
    trained = [one.section for one in sections(recipe)]
    online = [section for section in trained if isinstance(section, Online)]
    if online:
        return FAMILIES[5] if online[-1].cadence == "step" else FAMILIES[4]
    if recipe.offline:
        return FAMILIES[3]
    return FAMILIES[1] if any(isinstance(section, Reward) for section in trained) else FAMILIES[0]


def _decodes(recipe: Recipe) -> bool:
    """Whether an arm of its evaluation answers with the best of several samples, or with several models."""
    if recipe.evaluate is None:
        return False
    arms = (recipe.evaluate.arms or {}).values()
    rollouts = [{"name": "sample", **arm.rollout} for arm in arms if arm.rollout]
    return bool(recipe.evaluate.best_of or any(arm.best_of for arm in arms) or any(map(models_of, rollouts)))


def families(recipes: Mapping[str, Recipe]) -> dict[str, list[str]]:
    """Names of recipes by family, in the order of `FAMILIES`."""
    found = {one: [name for name, recipe in recipes.items() if family(recipe) == one] for one in FAMILIES}
    return {one: names for one, names in found.items() if names}


def summary(recipe: Recipe, stored: Mapping[str, Verdict]) -> list[str]:
    """What a recipe is in five lines: about, family and paper, difference from its base, pieces with their
    papers, claim with what was measured of it.
    """
    own = ", ".join(f"{key}: {value}" for key, value in difference(recipe.name).items())
    return [
        f"{recipe.name}: {recipe.about}",
        f"family    {family(recipe)}, {recipe.paper}",
        f"base      {recipe.base or 'none'}{f'; its own keys: {own}' if own else ''}",
        f"pieces    {', '.join(pieces(recipe))}",
        f"claim     {measured(recipe, stored)}",
    ]


def measured(recipe: Recipe, stored: Mapping[str, Verdict]) -> str:
    """The claim of a recipe in words, and the stored verdict on it."""
    if recipe.claim is None:
        return "none"
    claim = f"{sentence(recipe.claim)}{f' ({recipe.claim.testbed})' if recipe.claim.testbed else ''}"
    if recipe.name not in stored:
        return f"{claim}: not measured, see `ratchet claims {recipe.name}`"
    one = stored[recipe.name]
    stale = " (stale: the definitions changed since)" if one.key != key_of(recipe.name) else ""
    effects = "; ".join(f"against {against}: {effect(row)}" for against, row in one.comparisons.items())
    return f"{claim}: {one.verdict}{stale}, {effects}, {one.seeds} seeds. {one.note or one.why}"


def difference(name: str) -> dict[str, Any]:
    """What a shipped recipe sets over its base, as dotted keys; empty for a recipe of one's own."""
    path = shipped().get(name)
    if path is None:
        return {}
    raw = read_yaml(path, "")
    words = ("schema", "base", "about", "paper", "claim", "name")
    return dict(_dotted({key: value for key, value in raw.items() if key not in words}))


def _dotted(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and "name" not in value:
        for key, inner in value.items():
            yield from _dotted(inner, f"{where}.{key}".lstrip("."))
    else:
        yield where, value


def pieces(recipe: Recipe) -> list[str]:
    """The pieces that a recipe names, with their papers."""
    known = {name: one for slot in SLOTS for name, one in catalogue(slot).items()}
    used = dict.fromkeys(name for name in _named(plain(recipe)) if name in known)
    return [f"{name} ({paper})" if (paper := known[name].paper) else name for name in used]


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(value.get("name"), str):
            yield value["name"]
        for key, inner in value.items():
            if key != "claim":
                yield from _named(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _named(inner)
    elif isinstance(value, str) and value.startswith("generate:"):
        yield value.removeprefix("generate:").partition("?")[0]
