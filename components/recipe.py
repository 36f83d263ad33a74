"""Recipes: short YAML over one base, read strictly into `components/schema.py`, every default written out.

A method file names its `base` and what differs. A mapping is merged into the base's, a list replaces the base's
list, a piece with another `name` replaces the base's piece. No second level, no interpolation, no conditionals.
"""

from __future__ import annotations

import dataclasses
import types as pytypes
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from components.check import check, check_sizes, known_keys
from components.correction import corrected, corrected_again
from components.errors import RecipeError, nearest, secret_in
from components.piece import describe, resolve
from components.schema import SCHEMA, Online, Profile, Recipe, Spec
from components.sections import PROMPT_SECTIONS

OBJECTIVE_KEYS = ("weight", "reduce", "label", "times")
YAML = (".yaml", ".yml")  # a name that ends so is a file's


def folder() -> Path:
    """Where the recipes of this distribution lie."""
    return Path(__file__).resolve().parent.parent / "flows" / "recipes"


def names() -> list[str]:
    return sorted(p.stem for p in folder().glob("*.yaml"))


def load(recipe: str | Path, *, overrides: Sequence[str] = (), profile: str | None = None) -> tuple[Recipe, Profile]:
    """Read, merge, resolve and check a recipe given by name or file. `overrides` are `online.rounds=2` strings."""
    path = Path(recipe)
    if path.suffix not in YAML:
        path = folder() / f"{recipe}.yaml"
        if not path.exists():
            raise RecipeError(f"no recipe named {str(recipe)!r}{nearest(str(recipe), names())}")
    raw = _read(path)
    if raw.get("base"):
        base = folder() / "bases" / f"{raw['base']}.yaml"
        if not base.exists():
            known = [p.stem for p in base.parent.glob("*.yaml")]
            raise RecipeError(f"{path.name}: no base named {raw['base']!r}{nearest(raw['base'], known)}")
        raw = merge(_read(base), raw)
    for override in overrides:
        raw = merge(raw, _override(override))
    raw.setdefault("name", path.stem)
    if profile:
        raw["profile"] = profile
    refuse_secrets(raw)
    if raw.get("schema") != SCHEMA:
        raise RecipeError(f"{path.name}: schema {raw.get('schema')!r} is not {SCHEMA}, the one this version reads; "
                          f"write `schema: {SCHEMA}` once its keys are checked against the bases")
    resolved = _resolved(typing.cast(Recipe, conform(Recipe, raw, "")))
    hardware = load_profile(resolved.profile)
    resolved = corrected(resolved, hardware)
    check(resolved, _changed_rounds(resolved.online) if resolved.online else {})
    return resolved, hardware


def load_profile(name: str) -> Profile:
    """A profile that ships, by its name, or anybody's file, by its path."""
    path = Path(name)
    if path.suffix not in YAML:
        path = folder() / "profiles" / f"{name}.yaml"
    if not path.exists():
        raise RecipeError(f"no profile named {name!r}{nearest(name, [p.stem for p in (folder() / 'profiles').glob('*.yaml')])}")
    raw = {"name": path.stem, **_read(path)}
    refuse_secrets(raw, f"profile {name}")
    check_sizes(raw, f"profile {name}")
    return typing.cast(Profile, conform(Profile, raw, f"profile {name}"))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on `base`: mappings merge, everything else replaces; a piece of another name replaces the whole piece. The 2 of a file
    and the "2" of a command line are one key."""
    if "name" in base and "name" in over and "fit" not in base and "schema" not in base and base["name"] != over["name"]:
        return dict(over)
    merged, known = dict(base), {str(key): key for key in base}
    for name, value in over.items():
        key = known.get(str(name), name)
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def dump(recipe: Recipe, profile: Profile) -> str:
    """The resolved recipe, every default written out, as YAML."""
    return yaml.safe_dump(plain({"recipe": recipe, "profile": profile}), sort_keys=False, width=110)


def reread(text: str) -> tuple[Recipe, Profile]:
    """What `dump` wrote, whatever the bases and profiles say by now: how a run is made again."""
    raw = yaml.safe_load(text)
    if not isinstance(raw, dict) or set(raw) != {"recipe", "profile"}:
        raise RecipeError("not a resolved recipe: expected the two keys `recipe` and `profile` of a run's recipe.yaml")
    refuse_secrets(raw)
    recipe = typing.cast(Recipe, conform(Recipe, raw["recipe"], ""))
    check(recipe, _changed_rounds(recipe.online) if recipe.online else {})
    return recipe, typing.cast(Profile, conform(Profile, raw["profile"], "profile"))


def refuse_secrets(value: Any, where: str = "") -> None:
    """Raises a `RecipeError` that names the key which holds a secret: what a recipe says is copied into runs, MLflow, reports
    and Prefect's parameters."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            refuse_secrets(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value):
            refuse_secrets(inner, f"{where}[{number}]")
    elif isinstance(value, str) and (found := secret_in(value)):
        raise RecipeError(f"{where}: holds {found}, and a recipe is copied into runs, MLflow, reports and Prefect; leave it out: "
                          "secrets are read from the environment, a Prefect block or a file, never from a recipe")


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
    raw = read_yaml(path, f"no recipe file at {path}; `ratchet recipes` lists the ones that ship")
    if not isinstance(raw, dict):
        raise RecipeError(f"{path}: a recipe is a mapping, got {type(raw).__name__}")
    return raw


def read_yaml(path: Path, missing: str) -> Any:
    """What a YAML file holds. `RecipeError`: `missing` when there is none, where it breaks when it is not YAML."""
    try:
        return yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise RecipeError(missing) from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def _override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {text!r} is not of the form key.path=value")
    try:
        nested: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise RecipeError(f"override {text!r}: not valid YAML: {' '.join(str(error).split())}") from None
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return nested


def conform(kind: Any, value: Any, where: str) -> Any:
    """`value` read from YAML as the annotated `kind`, strictly; `where` is the path for messages. Raises `RecipeError`."""
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, pytypes.UnionType):
        options = typing.get_args(kind)
        if value is None and type(None) in options:
            return None
        real = [o for o in options if o is not type(None)]
        return conform(real[-1] if isinstance(value, Mapping) else real[0], value, where)  # a word, or a mapping in its place
    if origin is Literal:
        if value not in typing.get_args(kind):
            allowed = [str(a) for a in typing.get_args(kind)]
            raise RecipeError(f"{where}: {value!r} is not one of {', '.join(allowed)}{nearest(str(value), allowed)}")
        return value
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return _conform_record(typing.cast(type, kind), value, where)
    if origin in (dict, Mapping) or origin is getattr(typing, "Mapping", None) or (
        isinstance(origin, type) and issubclass(origin, Mapping)
    ):
        if not isinstance(value, Mapping):
            raise RecipeError(f"{where}: expected a mapping, got {value!r}")
        keys, inner = typing.get_args(kind)
        if typing.get_origin(keys) is Literal:
            known_keys(value, typing.get_args(keys), where)
        return {k: conform(inner, v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise RecipeError(f"{where}: expected a list, got {value!r}")
        inner = typing.get_args(kind)[0]
        return [conform(inner, v, f"{where}[{i}]") for i, v in enumerate(value)]
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-5 as text
        except ValueError:
            pass
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RecipeError(f"{where}: expected {kind.__name__}, got {value!r}")
    return value


def _conform_record(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise RecipeError(f"{where}: expected a mapping with keys of {kind.__name__.lower()}, got {value!r}")
    hints = typing.get_type_hints(kind)
    known_keys(value, hints, where)
    built = {key: conform(hints[key], v, f"{where}.{key}" if where else key) for key, v in value.items()}
    if typing.is_typeddict(kind):
        return built
    missing = [f.name for f in dataclasses.fields(kind)
               if f.name not in built and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if missing:
        raise RecipeError(f"{where or 'recipe'}: needs {', '.join(repr(m) for m in missing)}")
    return kind(**built)


def _resolved(recipe: Recipe) -> Recipe:
    """Every piece with its defaults written out."""
    transforms = [resolve("transform", spec, where=f"data.transforms[{i}]") for i, spec in enumerate(recipe.data.get("transforms", ()))]
    own = {name: {**part, "transforms": [resolve("transform", spec, where=f"data.{name}.transforms[{i}]")
                                         for i, spec in enumerate(part["transforms"])]}
           for name in PROMPT_SECTIONS if (part := recipe.data.get(name)) and "transforms" in part}
    if (parser := recipe.data.get("parser", "auto")) != "auto":
        own["parser"] = resolve("parser", parser, where="data.parser")
    changes: dict[str, Any] = {"data": {**recipe.data, "transforms": transforms, **own}}
    if recipe.demonstrate:
        changes["demonstrate"] = _resolved_samples(recipe.demonstrate, "demonstrate")
    if recipe.preferences:
        changes["preferences"] = _resolved_samples(recipe.preferences, "preferences")
    for name in ("sft", "reward", "offline", "online"):
        section = getattr(recipe, name)
        if section is not None:
            changes[name] = _resolved_section(section, name)
    if recipe.register:
        gates = {name: gate for name, gate in recipe.register.gates.items() if gate is not None}
        changes["register"] = dataclasses.replace(recipe.register, gates=gates)
    if recipe.evaluate:
        metrics = [resolve("annotate", s, where="evaluate.metrics") for s in recipe.evaluate.metrics]
        measures = [resolve("measure", s, where="evaluate.measures") for s in recipe.evaluate.measures]
        best_of = recipe.evaluate.best_of
        if best_of:
            best_of = dataclasses.replace(best_of, annotate=[resolve("annotate", s, where="evaluate.best_of.annotate") for s in best_of.annotate])
        changes["evaluate"] = dataclasses.replace(recipe.evaluate, metrics=metrics, measures=measures, best_of=best_of)
    return dataclasses.replace(recipe, **changes)


def _resolved_samples(section: Any, name: str) -> Any:
    here = {slot: [resolve("annotate" if slot == "annotate" else "select", s, where=f"{name}.{slot}") for s in getattr(section, slot)]
            for slot in ("annotate", "sft", "reward", "select") if hasattr(section, slot)}
    return dataclasses.replace(section, rollout=resolve("rollout", section.rollout, where=f"{name}.rollout"), **here)


def _resolved_section(section: Any, name: str) -> Any:
    fit = dataclasses.replace(
        section.fit, adapter=resolve("adapter", section.fit.adapter, where=f"{name}.fit.adapter"),
        updates={role: [_objective(spec, f"{name}.fit.updates.{role}") for spec in parts]
                 for role, parts in section.fit.updates.items()})
    here: dict[str, Any] = {"fit": fit}
    for slot in ("annotate", "select", "prepare"):
        if hasattr(section, slot):
            kind = "select" if slot == "select" else "annotate"
            here[slot] = [resolve(kind, s, where=f"{name}.{slot}") for s in getattr(section, slot)]
    if isinstance(section, Online):
        here["rollout"] = resolve("rollout", section.rollout, where=f"{name}.rollout")
        here["prompts"] = resolve("prompts", section.prompts, where=f"{name}.prompts")
        if isinstance(section.reference, Mapping):
            here["reference"] = resolve("anchor", section.reference, where=f"{name}.reference")
    return dataclasses.replace(section, **here)


def for_round(online: Online, number: int) -> Online:
    """The section as round `number` runs it: `by_round: {2: {fit: {learning_rate: 1e-5}}}` changes round 2 alone."""
    change = online.by_round.get(str(number), online.by_round.get(number, {}))  # type: ignore[call-overload]
    if not change:
        return online
    where = f"online.by_round.{number}"
    merged = typing.cast(Online, conform(Online, merge(plain(online), change), where))
    return corrected_again(_resolved_section(merged, where), online)


def _changed_rounds(online: Online) -> dict[str, Online]:
    """The section as each round with changes runs it, by its place in the recipe."""
    for number in online.by_round:
        if not str(number).isdigit() or not 1 <= int(number) <= online.rounds or online.cadence != "round":
            raise RecipeError(f"online.by_round: {number!r} is no round; the recipe has rounds 1 to {online.rounds}")
    return {f"online.by_round.{number}": for_round(online, int(number)) for number in online.by_round}


def _objective(spec: Spec, where: str) -> dict[str, Any]:
    full = resolve("objective", spec, where=where, reserved=OBJECTIVE_KEYS)
    description = describe("objective", full["name"])
    default = "token_mean" if description.unit == "step" else "unit_mean"
    full = {"weight": 1.0, "reduce": default, "label": full["name"], **full}
    for key, value in full.items():
        number = key == "weight" or (key in description.options and "float" in description.options[key].annotation)
        if number and isinstance(value, Mapping):
            full[key] = resolve("knob", value, where=f"{where}: {key!r}")
    if not isinstance(full["weight"], Mapping):
        full["weight"] = conform(float, full["weight"], f"{where}: 'weight'")
    return full
