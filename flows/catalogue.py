"""The catalogue of recipes: their families, and a description of each (five lines, equation, option defaults,
measured claim with a plot).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.components.piece import describe, models_of
from ratchet.components.recipes.phases import Phase, sections
from ratchet.components.recipes.schema import Learn, Online, Recipe, Reward
from ratchet.components.recipes.schema_claim import Claim
from ratchet.flows.claim_records import Verdict, effect, key_of, sentence
from ratchet.flows.recipe_pieces import equations, options_of, own_keys, pieces, yaml_line

WIDTH = 41
"""Characters of the plot of an interval."""
STATED = ("testbed", "budget", "tuning")
"""Keys of a claim that say how it is checked."""
FAMILIES = (
    "Supervised fine-tuning",
    "Reward modelling",
    "Decoding",
    "Offline preference learning",
    "Online preference learning, in rounds",
    "Online learning, in on-policy steps",
    "Evaluation alone",
)


def family(recipe: Recipe) -> str:
    """Family of a recipe: by how it learns online; else decoding; else offline, reward model or SFT, by
    what it trains; "Evaluation alone" if it trains nothing. Pairs of a single round are offline: all answers
    are sampled before anything is learned.
    """
    phases = sections(recipe)
    trained = [one.section for one in phases]
    online = [one for one in trained if isinstance(one, Online) and not (one.rounds == 1 and _of_pairs(one))]
    if online:
        return FAMILIES[5] if online[-1].cadence == "step" else FAMILIES[4]
    if _decodes(recipe):
        return FAMILIES[2]
    if not any(hasattr(section, "fit") for section in trained):
        return FAMILIES[6]
    if recipe.offline or any(isinstance(one, Learn | Online) and _of_pairs(one) for one in trained):
        return FAMILIES[3]
    return FAMILIES[1] if any(map(_learns_reward, phases)) or _selects_labels(recipe) else FAMILIES[0]


def _of_pairs(section: Learn | Online) -> bool:
    """Whether an objective learns the policy from pairs of answers."""
    specs = [describe("objective", spec["name"]) for spec in section.fit.updates.get("policy", ())]
    return any(one.unit == "pair" and "logprobs" in one.outputs for one in specs)


def _learns_reward(phase: Phase) -> bool:
    """Whether a phase trains a reward model: a `reward` phase, or a `learn` phase that does not advance the
    policy and whose objectives use no log-probs.
    """
    if isinstance(phase.section, Reward):
        return True
    if not isinstance(phase.section, Learn) or phase.advances:
        return False
    specs = [spec for parts in phase.section.fit.updates.values() for spec in parts]
    return not any("logprobs" in describe("objective", spec["name"]).outputs for spec in specs)


def _selects_labels(recipe: Recipe) -> bool:
    """Whether a measure of its evaluation fits reward models to pairs that a selector chooses."""
    measures = recipe.evaluate.measures if recipe.evaluate else ()
    return any(
        option.nested == "select"
        for spec in measures
        for option in describe("measure", spec["name"]).options.values()
    )


def _decodes(recipe: Recipe) -> bool:
    """Whether an arm of its evaluation answers with the best of several samples, or with several models."""
    if recipe.evaluate is None:
        return False
    arms = (recipe.evaluate.arms or {}).values()
    rollouts = [{"name": "sample", **arm.rollout} for arm in arms if arm.rollout]
    return bool(recipe.evaluate.best_of or any(arm.best_of for arm in arms) or any(map(models_of, rollouts)))


def families(recipes: Mapping[str, Recipe]) -> dict[str, list[str]]:
    """Names of recipes by family, in the order of `FAMILIES`."""
    members = {
        title: [name for name, recipe in recipes.items() if family(recipe) == title] for title in FAMILIES
    }
    return {title: names for title, names in members.items() if names}


def summary(recipe: Recipe, stored: Mapping[str, Verdict]) -> list[str]:
    """What a recipe is in five lines: about, family and paper, difference from its base, pieces with their
    papers, claim with what was measured of it.
    """
    own = ", ".join(f"{key}: {yaml_line(value)}" for key, value in own_keys(recipe.name).items())
    return [
        f"{recipe.name}: {recipe.about}",
        f"family    {family(recipe)}, {recipe.paper}",
        f"base      {recipe.base or 'none'}{f'; its own keys: {own}' if own else ''}",
        f"pieces    {', '.join(pieces(recipe))}",
        f"claim     {claim_text(recipe, stored)}",
    ]


def claim_text(recipe: Recipe, stored: Mapping[str, Verdict]) -> str:
    """The claim of a recipe in words, and the stored verdict on it."""
    if recipe.claim is None:
        return "none"
    claim = f"{sentence(recipe.claim)} ({recipe.claim.testbed})"
    if recipe.name not in stored:
        return f"{claim}: not measured, see `ratchet claims {recipe.name}`"
    one = stored[recipe.name]
    stale = " (stale: the definitions changed since)" if one.key != key_of(recipe.name) else ""
    effects = "; ".join(f"against {against}: {effect(row)}" for against, row in one.comparisons.items())
    return f"{claim}: {one.verdict}{stale}, {effects}, {one.seeds} seeds. {one.note or one.why}"


def details(recipe: Recipe, stored: Mapping[str, Verdict]) -> list[str]:
    """Equation, options with their defaults, and a text plot of what was measured, for the terminal."""
    lines = ["equation"]
    lines += [f"  {name}: {text}" for name, text in equations(recipe).items()]
    lines += ["options, and what the pieces' papers or authors set"]
    for name, (options, paper) in options_of(recipe).items():
        source = f" ({paper})" if paper else ""
        lines += [f"  {name}{source}: {', '.join(_option(*one) for one in options)}"]
    if recipe.claim:
        lines += ["stated before the check"]
        lines += [f"  {key}: {getattr(recipe.claim, key)}" for key in STATED]
    if recipe.claim and recipe.name in stored:
        rows = rows_of(recipe.name, recipe.claim, stored[recipe.name])
        lines += ["measured (0: no difference, ¦: the smallest effect of interest)"] if rows else []
        lines += [f"  {row.name}  {text_bar(row)}" for row in rows]
    return lines


def _option(key: str, value: Any, default: Any) -> str:
    return f"{key} {value}" + ("" if value == default else f" (default {default})")


@dataclass(frozen=True)
class Row:
    """A measured difference with its interval, and the bound that the claim says it lies beyond."""

    name: str
    low: float
    mean: float
    high: float
    bound: float
    decision: str


def rows_of(name: str, claim: Claim, verdict: Verdict) -> list[Row]:
    """One row for each baseline that was measured."""
    bound = claim.at_least if claim.direction == "higher" else -claim.at_least
    return [
        Row(f"{name} − {against}", one.low, one.mean, one.high, bound, one.decision)
        for against, one in verdict.comparisons.items()
        if one.low is not None and one.mean is not None and one.high is not None
    ]


def text_bar(row: Row) -> str:
    """The interval `├──●──┤` on a line with 0 (`0`) and the claim's bound (`¦`), and the ends of the axis.

    >>> text_bar(Row("a", 0.1, 0.2, 0.3, 0.0, "holds"))
    '+0 0············├─────────────●────────────┤ +0.3'
    """
    first, last = min(row.low, row.bound, 0.0), max(row.high, row.bound, 0.0)
    span = (last - first) or 1.0

    def at(value: float) -> int:
        return round((WIDTH - 1) * (value - first) / span)

    line = ["·"] * WIDTH
    line[at(0.0)] = "0"
    if row.bound:
        line[at(row.bound)] = "¦"
    low, high = at(row.low), at(row.high)
    line[low : high + 1] = [mark if mark in "0¦" else "─" for mark in line[low : high + 1]]
    line[low], line[high] = "├", "┤"
    line[at(row.mean)] = "●"
    return f"{first:+.3g} {''.join(line)} {last:+.3g}"
