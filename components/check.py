"""The dataflow of a recipe, checked before anything heavy is imported: every column is written before it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping

from components.errors import RecipeError, nearest
from components.piece import describe
from components.reduce import legal
from components.schema import Fit, Offline, Online, Recipe, Spec


def check(recipe: Recipe, rounds: Mapping[str, Online]) -> None:
    """Walk the columns through every section of a resolved recipe, and through `rounds`: the online section as the rounds
    that change it run it, by their place in the recipe. The first thing read before it is written is a `RecipeError`.
    """
    _check_names({"name": recipe.name, **{f"models.{n}": n for n in recipe.models},
                  **({"register.model": recipe.register.model} if recipe.register else {})})
    known = {"policy", "reference", *recipe.models, *(recipe.reward.judges if recipe.reward else ())}
    if recipe.sft:
        _check_fit(recipe.sft.fit, set(), "sft.fit")
    if recipe.reward:
        probed = recipe.reward.linear_probe
        _check_fit(recipe.reward.fit, {"margin"}, "reward.fit", untrained=probed)
        if probed and recipe.reward.members > 1 and not recipe.reward.fit.epochs:
            raise RecipeError(f"reward.members: {recipe.reward.members} members that only a linear probe made are all the same; train them "
                              "(reward.fit.epochs over 0), start them without the probe, or ask for one")
    for where, section in {"offline": recipe.offline, "online": recipe.online, **rounds}.items():
        if section is not None:
            _check_section(section, known, where)
    if recipe.evaluate:
        have, arms = set[str](), {"base", "initial", "policy"}
        for spec in recipe.evaluate.metrics:
            have = _check_piece("annotate", spec, have, (known | arms) - {"reference", "encoder"}, "evaluate.metrics")
    if recipe.online and recipe.online.watch.get("gold") and not (recipe.evaluate and recipe.evaluate.gold):
        raise RecipeError("online.watch.gold: needs a gold judge; set `evaluate.gold: true`")


def _check_names(names: Mapping[str, str]) -> None:
    """Some names become names of files and folders: none may lead out of the run's."""
    for where, name in names.items():
        if not re.fullmatch(r"\w[\w .+-]{0,99}", str(name)):
            raise RecipeError(f"{where}: {name!r} becomes the name of a folder; write letters, digits, spaces and _ . + - only, "
                              "the first a letter or a digit, at most 100")


def _check_section(section: Offline | Online, models: set[str], where: str) -> None:
    have = {"logprobs.sampled"} if isinstance(section, Online) else {"margin"}
    # What chooses the prompts stands where it learns from them: it reads what was scored.
    prompts = [section.prompts] if isinstance(section, Online) else []
    steps = isinstance(section, Online) and section.cadence == "step"
    for slot, specs in {"annotate": section.annotate, "prompts": prompts, "select": section.select, "prepare": section.prepare}.items():
        for spec in specs:
            kind = "annotate" if slot == "prepare" else slot
            have = _check_piece(kind, spec, have, models, f"{where}.{slot}")
            if describe(kind, spec["name"]).memory and not steps:
                raise RecipeError(f"{where}.{slot}: {spec['name']!r} remembers earlier steps, and each round runs in a process of its own; "
                                  "use it with `cadence: step`" + (", or `keep_earlier: true` in its place" if slot == "select" else ""))
    if isinstance(section, Online) and section.reference != "initial" and isinstance(section.reference, Mapping) != steps:
        raise RecipeError(f"{where}.reference: got {section.reference!r} with `cadence: {section.cadence}`; expected `initial`, or "
                          + ("an anchor such as {name: ema}" if steps else "`previous`"))
    _check_fit(section.fit, have, f"{where}.fit")


def _check_piece(slot: str, spec: Spec, have: set[str], models: set[str], where: str) -> set[str]:
    description = describe(slot, spec["name"], where=where)
    _check_reads(description.columns("reads", spec), have, spec["name"], where)
    writes = set(description.columns("writes", spec))
    if slot == "annotate" and writes & have:
        raise RecipeError(f"{where}: {spec['name']!r} writes {sorted(writes & have)}, which is already written")
    for key in ("model", "models"):
        for name in [spec[key]] if isinstance(spec.get(key), str) else spec.get(key) or ():
            if name not in models:
                raise RecipeError(f"{where}: {spec['name']!r} wants model {name!r}, which nothing makes"
                                  f"{nearest(name, models)}")
    return have | writes


def _check_fit(fit: Fit, have: set[str], where: str, *, untrained: bool = False) -> None:
    if fit.epochs < (0 if untrained else 1):
        raise RecipeError(f"{where}.epochs: {fit.epochs} passes over the data train nothing; use 1 or more"
                          f"{'' if untrained else ' (0 only for a reward model with linear_probe)'}")
    if not any(fit.updates.values()):
        raise RecipeError(f"{where}.updates: nothing to optimise; name at least one objective")
    for role, parts in fit.updates.items():
        for spec in parts:
            description = describe("objective", spec["name"])
            at = f"{where}.updates.{role}"
            _check_reads(description.columns("reads", spec), have, spec["name"], at)
            if "times" in spec:
                _check_reads(frozenset({spec["times"]}), have, f"{spec['name']}.times", at)
                if description.unit not in ("step", "row"):
                    raise RecipeError(f"{at}: {spec['name']!r} has a term a {description.unit}, and `times` multiplies steps or rows")
            problem = legal(spec["reduce"], description.unit)
            if problem:
                raise RecipeError(f"{at}: {spec['name']!r}: {problem}")


def _check_reads(reads: frozenset[str], have: set[str], name: str, where: str) -> None:
    missing = sorted(reads - have)
    if missing:
        raise RecipeError(f"{where}: {name!r} reads {missing}, which nothing before it writes (have {sorted(have)})")
