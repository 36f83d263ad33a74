"""Recipes: short YAML over one base, read strictly into `components/recipes/schema.py`, every default written out.

A method file names its `base` and what differs. A mapping is merged into the base's, a list replaces the base's
list, a piece with another `name` replaces the base's piece, null removes what the base sets. No interpolation, no conditionals.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import RecipeError, nearest, secret_in
from ratchet.components.piece import describe, resolve
from ratchet.components.recipes.check import check, check_window
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.correction import corrected, corrected_again
from ratchet.components.recipes.ranges import Count, Finite
from ratchet.components.recipes.schema import SCHEMA, Online, Profile, Recipe, Spec
from ratchet.components.recipes.sections import PROMPT_SECTIONS
from ratchet.components.recipes.smoke import limited

OBJECTIVE_KEYS = ("weight", "reduce", "label", "times")
YAML = (".yaml", ".yml")  # a name that ends so is a file's
OF_BYTES = ("sha256", "base", "base_sha256", "format", "shape", "remote_code")  # keys of a source that hold for its bytes alone


def folder() -> Path:
    """Where the recipes of this distribution lie."""
    return Path(__file__).resolve().parents[2] / "flows" / "recipes"


def names() -> list[str]:
    return sorted(p.stem for p in folder().glob("*.yaml"))


def load(recipe: str | Path, *, overrides: Sequence[str] = (), profile: str | None = None, limit: int | None = None) -> tuple[Recipe, Profile]:
    """Read, merge, resolve and check a recipe given by name or file. `overrides` are `online.rounds=2` strings, `limit` makes it a smoke test."""
    path = Path(recipe)
    if path.suffix not in YAML:
        path = folder() / f"{recipe}.yaml"
        if not path.exists():
            file = "; the name of a file of yours ends in .yaml" if Path(recipe).parent != Path() else ""
            raise RecipeError(f"no recipe named {str(recipe)!r}{file or nearest(str(recipe), names())}")
    raw = _over_base(path)
    changes: dict[str, Any] = {}
    for override in overrides:
        changes = merge(changes, _override(override))
    raw = merge(raw, changes)
    _from(Path.cwd(), raw)
    raw.setdefault("name", path.stem)
    if profile:
        raw["profile"] = profile
    refuse_secrets(raw)
    if raw.get("schema") != SCHEMA:
        raise RecipeError(f"{path.name}: schema {raw.get('schema')!r} is not {SCHEMA}, the one this version reads; "
                          f"write `schema: {SCHEMA}` once its keys are checked against the bases")
    resolved = _resolved(conform(Recipe, raw, ""))
    hardware = load_profile(resolved.profile)
    resolved = corrected(resolved, hardware)
    if (claim := resolved.claim) and not claim.against.endswith(YAML) and claim.against not in names():
        raise RecipeError(f"claim.against: no recipe named {claim.against!r}{nearest(claim.against, names())}")
    check(resolved, _changed_rounds(resolved.online) if resolved.online else {})
    check_window(resolved, hardware)
    if limit is not None:
        resolved = limited(resolved, conform(Count, limit, "--limit"))
        check(resolved, _changed_rounds(resolved.online) if resolved.online else {})
    return resolved, hardware


def _over_base(path: Path) -> dict[str, Any]:
    """A recipe's file over its base: one of `bases/`, a recipe that ships, or a file beside it. Of the last two one may stand over one of `bases/`."""
    raw = _read(path)
    if not raw.get("base"):
        return raw
    base = _base(path, str(raw["base"]))
    under = _read(base)
    if under.get("base"):
        lowest = folder() / "bases" / f"{under['base']}.yaml"
        if not lowest.exists():
            raise RecipeError(f"{path.name}: its base {raw['base']!r} stands over {under['base']!r}, expected one of {', '.join(_bases())}; "
                              "write what differs from one of these")
        under = merge(_read(lowest), {key: value for key, value in under.items() if key not in ("name", "claim")})
    return merge(under, raw)


def _base(path: Path, name: str) -> Path:
    if name.endswith(YAML):
        return path.parent / name
    for file in (folder() / "bases" / f"{name}.yaml", folder() / f"{name}.yaml"):
        if file.exists():
            return file
    raise RecipeError(f"{path.name}: no base named {name!r}{nearest(name, [*_bases(), *names()])}")


def _bases() -> list[str]:
    return sorted(p.stem for p in (folder() / "bases").glob("*.yaml"))


def _from(place: Path, raw: Mapping[str, Any]) -> None:
    """Makes the relative addresses of files in `raw` those of files under `place`."""
    models = raw.get("models")
    data = raw.get("data")
    several = data.get("sources") if isinstance(data, Mapping) else None
    for section in [data, *(several if isinstance(several, list) else ()), *(models.values() if isinstance(models, Mapping) else ())]:
        for key in ("source", "base"):
            if isinstance(section, dict) and str(section.get(key)).startswith("path:"):
                section[key] = f"path:{os.path.normpath(place.absolute() / section[key].removeprefix('path:'))}"


def load_profile(name: str) -> Profile:
    """A profile that ships, by its name, or anybody's file, by its path."""
    path = Path(name)
    if path.suffix not in YAML:
        path = folder() / "profiles" / f"{name}.yaml"
    if not path.exists():
        raise RecipeError(f"no profile named {name!r}{nearest(name, [p.stem for p in (folder() / 'profiles').glob('*.yaml')])}")
    raw = {"name": path.stem, **_read(path)}
    refuse_secrets(raw, f"profile {name}")
    return conform(Profile, raw, f"profile {name}")


def merge(base: Mapping[str, Any], over: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """`over` on `base`: mappings merge, everything else replaces; a piece of another name replaces the whole piece, and another source
    what `base` says of the bytes of its own. A mapping of numbers over a list changes the items of these numbers, counted from 0; null
    takes one away."""
    if isinstance(base.get("source"), str) and over.get("source", base["source"]) != base["source"]:
        base = {key: value for key, value in base.items() if key not in OF_BYTES}
    if "name" in base and "name" in over and "fit" not in base and "schema" not in base and base["name"] != over["name"]:
        return dict(over)
    merged = dict(base)
    if where == "data":  # one source in place of several, or the other way round
        replaced = ("source", "sha256", "config", "parser", "columns") if over.get("sources") else ("sources",) if over.get("source") else ()
        merged = {key: value for key, value in merged.items() if key not in replaced}
    for key, value in over.items():
        merged[key] = _on(merged.get(key), value, f"{where}.{key}" if where else key)
    return merged


def _on(below: Any, value: Any, where: str) -> Any:
    if isinstance(below, Mapping) and isinstance(value, Mapping):
        return merge(below, value, where)
    if not (isinstance(below, list) and isinstance(value, Mapping) and value and all(str(key).isdigit() for key in value)):
        return value
    items = list(below)
    for key, item in value.items():
        if int(key) >= len(items):
            raise RecipeError(f"{where}.{key}: the list has {len(items)} items, counted from 0; write the whole list to add one")
        one = items[int(key)]
        items[int(key)] = _on({"name": one} if isinstance(one, str) and isinstance(item, Mapping) else one, item, f"{where}.{key}")
    return [item for item in items if item is not None]


def dump(recipe: Recipe, profile: Profile) -> str:
    """The resolved recipe, every default written out, as YAML."""
    return yaml.safe_dump(plain({"recipe": recipe, "profile": profile}), sort_keys=False, width=110)


def reread(text: str) -> tuple[Recipe, Profile]:
    """What `dump` wrote, whatever the bases and profiles say by now: how a run is made again."""
    raw = parse_yaml(text)
    if not isinstance(raw, dict) or set(raw) != {"recipe", "profile"}:
        raise RecipeError("not a resolved recipe: expected the two keys `recipe` and `profile` of a run's recipe.yaml")
    refuse_secrets(raw)
    recipe = conform(Recipe, raw["recipe"], "")
    check(recipe, _changed_rounds(recipe.online) if recipe.online else {})
    return recipe, conform(Profile, raw["profile"], "profile")


def refuse_secrets(value: Any, where: str = "") -> None:
    """Raises a `RecipeError` that names the key which holds a secret: what a recipe says is copied into runs, reports,
    the tracking server and the orchestrator."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            refuse_secrets(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value):
            refuse_secrets(inner, f"{where}[{number}]")
    elif isinstance(value, str) and (found := secret_in(value)):
        raise RecipeError(f"{where}: holds {found}, and a recipe is copied into runs, reports, the tracking server and the orchestrator; leave it out: "
                          "secrets are read from the environment, a secret block of the orchestrator or a file, never from a recipe")


def plain(value: Any) -> Any:
    """Dataclasses, mappings and sequences as plain dicts and lists: what is hashed, dumped and sent to children."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def _read(path: Path) -> dict[str, Any]:
    raw = read_yaml(path, f"no recipe file at {path}; `ratchet recipes list` names the ones that ship")
    if not isinstance(raw, dict):
        raise RecipeError(f"{path}: a recipe is a mapping, got {type(raw).__name__}")
    if path.parent != folder():  # one that ships means a file of the user's
        _from(path.parent, raw)
    return raw


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):
    """YAML whose keys are text as written and stand once, and whose 1e-5 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        self.flatten_mapping(node)
        found: dict[str, Any] = {}
        for key, value in node.value:
            if key.value in found:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
            found[key.value] = self.construct_object(value, deep=True)
        return found


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node))


def parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def read_yaml(path: Path, missing: str) -> Any:
    """What a YAML file holds. `RecipeError`: `missing` when there is none, where it breaks when it is not YAML."""
    try:
        return parse_yaml(path.read_text())
    except FileNotFoundError:
        raise RecipeError(missing) from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def _override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {text!r} is not of the form key.path=value")
    try:
        nested: Any = parse_yaml(value)
    except yaml.YAMLError as error:
        raise RecipeError(f"override {text!r}: not valid YAML: {' '.join(str(error).split())}") from None
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return nested


def _resolved(recipe: Recipe) -> Recipe:
    """Every piece with its defaults written out."""
    own: dict[str, Any] = {name: dataclasses.replace(part, transforms=_each("transform", part.transforms, f"data.{name}.transforms"))
           for name in PROMPT_SECTIONS if (part := getattr(recipe.data, name))}
    if recipe.data.parser != "auto":
        own["parser"] = resolve("parser", recipe.data.parser, where="data.parser")
    own["sources"] = [one if one.parser == "auto" else dataclasses.replace(one, parser=resolve("parser", one.parser, where=f"data.sources[{i}].parser"))
                      for i, one in enumerate(recipe.data.sources)]
    changes: dict[str, Any] = {"data": dataclasses.replace(recipe.data, transforms=_each("transform", recipe.data.transforms, "data.transforms"), **own)}
    if recipe.demonstrate:
        changes["demonstrate"] = _resolved_samples(recipe.demonstrate, "demonstrate")
    if recipe.preferences:
        changes["preferences"] = _resolved_samples(recipe.preferences, "preferences")
    for name in ("sft", "reward", "offline", "online"):
        section = getattr(recipe, name)
        if section is not None:
            changes[name] = _resolved_section(section, name)
    if recipe.evaluate:
        metrics = _each("annotate", recipe.evaluate.metrics, "evaluate.metrics")
        measures = _each("measure", recipe.evaluate.measures, "evaluate.measures")
        best_of = recipe.evaluate.best_of
        if best_of:
            best_of = dataclasses.replace(best_of, annotate=_each("annotate", best_of.annotate, "evaluate.best_of.annotate"))
        changes["evaluate"] = dataclasses.replace(recipe.evaluate, metrics=metrics, measures=measures, best_of=best_of)
    if recipe.register and not recipe.register.model:
        changes["register"] = dataclasses.replace(recipe.register, model=recipe.name)
    return dataclasses.replace(recipe, **changes)


def _each(slot: str, specs: Sequence[Spec], where: str) -> list[dict[str, Any]]:
    return [resolve(slot, spec, where=f"{where}[{i}]") for i, spec in enumerate(specs)]


def _resolved_samples(section: Any, name: str) -> Any:
    here = {slot: _each("annotate" if slot == "annotate" else "select", getattr(section, slot), f"{name}.{slot}")
            for slot in ("annotate", "sft", "reward", "select") if hasattr(section, slot)}
    return dataclasses.replace(section, rollout=resolve("rollout", section.rollout, where=f"{name}.rollout"), **here)


def _resolved_section(section: Any, name: str) -> Any:
    fit = dataclasses.replace(
        section.fit, adapter=resolve("adapter", section.fit.adapter, where=f"{name}.fit.adapter"),
        updates={role: [_objective(spec, f"{name}.fit.updates.{role}[{i}]") for i, spec in enumerate(parts)]
                 for role, parts in section.fit.updates.items()})
    here: dict[str, Any] = {"fit": fit}
    for slot in ("annotate", "select", "prepare"):
        if hasattr(section, slot):
            here[slot] = _each("select" if slot == "select" else "annotate", getattr(section, slot), f"{name}.{slot}")
    if isinstance(section, Online):
        here["rollout"] = resolve("rollout", section.rollout, where=f"{name}.rollout")
        here["prompts"] = resolve("prompts", section.prompts, where=f"{name}.prompts")
        if isinstance(section.watch.gold, Mapping):
            gold = resolve("annotate", section.watch.gold, where=f"{name}.watch.gold")
            here["watch"] = dataclasses.replace(section.watch, gold=gold)
        if isinstance(section.reference, Mapping):
            here["reference"] = resolve("anchor", section.reference, where=f"{name}.reference")
    return dataclasses.replace(section, **here)


def for_round(online: Online, number: int) -> Online:
    """The section as round `number` runs it: `by_round: {2: {fit: {learning_rate: 1e-5}}}` changes round 2 alone."""
    change = online.by_round.get(str(number), {})
    if not change:
        return online
    where = f"online.by_round.{number}"
    merged = conform(Online, merge(plain(online), change), where)
    return corrected_again(_resolved_section(merged, where), online)


def _changed_rounds(online: Online) -> dict[str, Online]:
    """The section as each round with changes runs it, by its place in the recipe."""
    for number in online.by_round:
        if not str(number).isdigit() or not 1 <= int(number) <= online.rounds or online.cadence != "round":
            raise RecipeError(f"online.by_round: {number} is no round; the recipe has rounds 1 to {online.rounds}")
    return {f"online.by_round.{number}": for_round(online, int(number)) for number in online.by_round}


def _objective(spec: Spec, where: str) -> dict[str, Any]:
    full = resolve("objective", spec, where=where, reserved=OBJECTIVE_KEYS)
    description = describe("objective", full["name"])
    default = "token_mean" if description.unit == "step" else "unit_mean"
    full = {"weight": 1.0, "reduce": default, "label": full["name"], **full}
    for key, value in full.items():
        if isinstance(value, Mapping) and key not in ("reduce", "label", "times"):
            full[key] = resolve("knob", value, where=f"{where}.{key}")
    if not isinstance(full["weight"], Mapping):
        full["weight"] = conform(Finite, full["weight"], f"{where}.weight")
    return full
