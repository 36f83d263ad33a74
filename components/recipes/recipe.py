"""Loading of recipes: YAML over a base, validated by `components/recipes/schema.py`, with all defaults
written out.

A recipe names its `base` and what differs: mappings merge, lists replace the base's list, a piece with
another `name` replaces the base's piece, null removes a key. No interpolation, no conditionals.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import RecipeError, nearest, secret_in
from ratchet.components.recipes.changed_rounds import changed_rounds
from ratchet.components.recipes.check import check, check_window
from ratchet.components.recipes.check_families import check_backends
from ratchet.components.recipes.check_warnings import of_the_tiny_model
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.correction import corrected
from ratchet.components.recipes.defaults import with_defaults
from ratchet.components.recipes.merging import merge
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.ranges import Count
from ratchet.components.recipes.schema import SCHEMA, Recipe
from ratchet.components.recipes.schema_claim import START, ZERO
from ratchet.components.recipes.smoke import limited
from ratchet.components.recipes.yaml_files import dump_yaml, folder, parse_yaml, read_yaml, shipped

YAML = (".yaml", ".yml")  # a name with this suffix is a file


def names() -> list[str]:
    return sorted(shipped())


def written() -> dict[str, Recipe]:
    """Every recipe that ships, by name, as it is written over its base: without the checks of `load` and the
    defaults of pieces, and so in a fraction of its time.
    """
    files = shipped()
    return {name: conform(Recipe, {"name": name, **_over_base(files[name])}, "") for name in sorted(files)}


def load(
    recipe: str | Path, *, overrides: Sequence[str] = (), profile: str | None = None, limit: int | None = None
) -> tuple[Recipe, Profile]:
    """Read, merge, resolve and check a recipe given by name or file. `overrides`: strings such as
    `online.rounds=2`.
    `limit`: reduce to a smoke test.
    """
    path = _file(recipe)
    raw = _over_base(path)
    changes = _changes(overrides)
    raw = merge(raw, changes)
    _from(Path.cwd(), raw)
    raw.setdefault("name", path.stem)
    if profile:
        raw["profile"] = profile
    refuse_secrets(raw)
    if raw.get("schema") != SCHEMA:
        raise RecipeError(
            f"{path.name}: expected `schema: {SCHEMA}`, got {raw.get('schema')!r}; "
            f"write `schema: {SCHEMA}` after comparing its keys with the shipped bases"
        )
    _check_keys(raw, path)
    resolved = with_defaults(conform(Recipe, raw, ""))
    hardware = load_profile(resolved.profile)
    resolved = corrected(resolved, hardware)
    for baseline in resolved.claim.recipes if resolved.claim else ():
        if not baseline.endswith(YAML) and baseline not in names():
            raise RecipeError(
                f"claim.against: no recipe named {baseline!r}{nearest(baseline, [START, ZERO, *names()])}"
            )
    check(resolved, changed_rounds(resolved))
    check_window(resolved, hardware)
    check_backends(resolved, hardware)
    if limit is not None:
        resolved = limited(resolved, conform(Count, limit, "--limit"))
        check(resolved, changed_rounds(resolved))
    return resolved, hardware


def inherited_sizes(recipe: str | Path, overrides: Sequence[str] = ()) -> list[str]:
    """A warning if the recipe trains another model with what its base sets for the tiny one."""
    under, raw = _layers(_file(recipe))
    return of_the_tiny_model(merge(raw, _changes(overrides)), under)


def _file(recipe: str | Path) -> Path:
    """The file of a recipe given by name or file."""
    path = Path(recipe)
    if path.suffix not in YAML:
        path = shipped().get(str(recipe), folder() / f"{recipe}.yaml")
        if not path.exists():
            hint = nearest(str(recipe), names()).partition("; known")[0]
            hint = "; a file name must end in .yaml" if Path(recipe).parent != Path() else hint
            listed = "; `ratchet recipes list` names the ones that ship"
            raise RecipeError(f"no recipe named {str(recipe)!r}{hint or listed}")
    return path


def _changes(overrides: Sequence[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for override in overrides:
        changes = merge(changes, _override(override))
    return changes


def _check_keys(raw: Mapping[str, Any], path: Path) -> None:
    """`RecipeError` for a key of hardware profiles, and for a recipe without a base that lacks a section that
    every recipe has.
    """
    own, of_profile = ({one.name for one in dataclasses.fields(kind)} for kind in (Recipe, Profile))
    if misplaced := next((key for key in raw if key in of_profile - own), None):
        raise RecipeError(
            f"{misplaced}: a key of hardware profiles, not of recipes; write it into a profile file of your "
            "own and name that by --profile FILE (docs/scale.md)"
        )
    missing = [repr(key) for key in ("models", "data") if raw.get(key) is None]
    if missing and not raw.get("base"):
        raise RecipeError(
            f"{path.name}: needs {' and '.join(missing)}; write them, or name what the recipe builds on, "
            f"such as `base: sft`: one of {', '.join(_bases())}, or a recipe that ships"
        )


def _over_base(path: Path) -> dict[str, Any]:
    """A recipe merged over its base."""
    under, raw = _layers(path)
    return merge(under, raw) if under else raw


def _layers(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a recipe is merged over, empty without a base, and the recipe as written. The base is one of
    `bases/`, a shipped recipe, or a file next to it. The latter two may themselves have a base in `bases/`.
    Name and claim belong to the base alone, and so do a shipped recipe's `about` and `paper`, whose words are
    about its own data.
    """
    raw = _read(path)
    if not raw.get("base"):
        return {}, raw
    base = _base(path, str(raw["base"]))
    under = _read(base)
    is_recipe = base in shipped().values()
    own = ("name", "claim", *(("about", "paper") if is_recipe else ()))
    if is_recipe:
        raw = {"about": f"{raw.get('name') or path.stem}, over {base.stem}.", **raw}
    if under.get("base"):
        lowest = folder() / "bases" / f"{under['base']}.yaml"
        if not lowest.exists():
            raise RecipeError(
                f"{path.name}: its base {raw['base']!r} has the base {under['base']!r}, which is itself a "
                f"recipe; copy {base} to a file "
                f"of your own and change that, or use {under['base']!r} or one of {', '.join(_bases())} "
                "as the base"
            )
        under = merge(_read(lowest), {key: value for key, value in under.items() if key not in own})
    return under, raw


def _base(path: Path, name: str) -> Path:
    if name.endswith(YAML):
        return path.parent / name
    for file in (folder() / "bases" / f"{name}.yaml", shipped().get(name)):
        if file is not None and file.exists():
            return file
    raise RecipeError(f"{path.name}: no base named {name!r}{nearest(name, [*_bases(), *names()])}")


def _bases() -> list[str]:
    return sorted(p.stem for p in (folder() / "bases").glob("*.yaml"))


def _from(place: Path, raw: Mapping[str, Any]) -> None:
    """Make relative file addresses in `raw` relative to `place`."""
    models = raw.get("models")
    data = raw.get("data")
    several = data.get("sources") if isinstance(data, Mapping) else None
    for section in [
        data,
        *(several if isinstance(several, list) else ()),
        *(models.values() if isinstance(models, Mapping) else ()),
    ]:
        for key in ("source", "base"):
            if isinstance(section, dict) and str(section.get(key)).startswith("path:"):
                section[key] = (
                    f"path:{os.path.normpath(place.absolute() / section[key].removeprefix('path:'))}"
                )


def load_profile(name: str) -> Profile:
    """A shipped profile by name, or a profile file by path."""
    path = Path(name)
    if path.suffix not in YAML:
        path = folder() / "profiles" / f"{name}.yaml"
    if not path.exists():
        known = [p.stem for p in (folder() / "profiles").glob("*.yaml")]
        raise RecipeError(
            f"no profile file at {path}"
            if Path(name).suffix in YAML
            else f"no profile named {name!r}{nearest(name, known)}"
        )
    raw = {"name": path.stem, **_read(path)}
    refuse_secrets(raw, f"profile {name}")
    return conform(Profile, raw, f"profile {name}")


def dump(recipe: Recipe, profile: Profile) -> str:
    """The resolved recipe as YAML, with all defaults."""
    return dump_yaml(plain({"recipe": recipe, "profile": profile}))


def reread(text: str) -> tuple[Recipe, Profile]:
    """Read a recipe written by `dump`, independent of current bases and profiles: for reproducing a run."""
    raw = parse_yaml(text)
    if not isinstance(raw, dict) or set(raw) != {"recipe", "profile"}:
        raise RecipeError(
            "not a resolved recipe: expected the two keys `recipe` and `profile` of a run's recipe.yaml"
        )
    refuse_secrets(raw)
    recipe = conform(Recipe, raw["recipe"], "")
    check(recipe, changed_rounds(recipe))
    return recipe, conform(Profile, raw["profile"], "profile")


def refuse_secrets(value: Any, where: str = "") -> None:
    """`RecipeError` naming the key that contains a secret, since recipes are copied into runs, reports, the
    tracking server and the orchestrator.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            refuse_secrets(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value):
            refuse_secrets(inner, f"{where}[{number}]")
    elif isinstance(value, str) and (found := secret_in(value)):
        raise RecipeError(
            f"{where}: contains {found}, but recipes are copied into runs, reports, the tracking server "
            "and the orchestrator; remove it: "
            "secrets are read from the environment, a secret block of the orchestrator or a file"
        )


def _read(path: Path) -> dict[str, Any]:
    raw = read_yaml(path, f"no recipe file at {path}; `ratchet recipes list` names the ones that ship")
    if raw is None:
        raise RecipeError(f"{path}: the file is empty; expected keys such as `base: sft` (docs/recipes.md)")
    if not isinstance(raw, dict):
        got = "a list" if isinstance(raw, list) else f"the value {str(raw)[:40]!r}"
        raise RecipeError(f"{path}: expected a mapping of keys to values, got {got}")
    if folder() not in path.parents:  # paths in shipped recipes are relative to the working directory
        _from(path.parent, raw)
    return raw


def _override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {text!r} must have the form key.path=value")
    try:
        nested: Any = parse_yaml(value)
    except yaml.YAMLError as error:
        raise RecipeError(f"override {text!r}: not valid YAML: {' '.join(str(error).split())}") from None
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return nested
