"""Registry of pieces (plugins): functions found by file name, described without being imported.

`components/pieces/objectives/clip.py` with a function `clip` is what a recipe calls `clip` in the objectives
slot; another function of that file is `clip.row`; slots with several folders use prefixes: `rewards.length`.
`describe` parses the source: recipes are checked in milliseconds, without torch.
"""

from __future__ import annotations

import ast
import functools
import importlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.models.outputs import Shape
from ratchet.components.recipes.conform import conform, consistent, is_number, takes_null
from ratchet.components.recipes.piece_source import Makes, Option, Unit, is_lifted, options_of, snake_case
from ratchet.components.stages.progress import advance

ROOT = Path(__file__).parent
F = TypeVar("F", bound=Callable[..., Any])

SLOTS: dict[str, tuple[str, ...]] = {  # slot of a recipe -> folders of its pieces
    "annotate": ("rewards", "advantages", "scoring"),
    "select": ("selectors",),
    "objective": ("objectives",),
    "rollout": ("rollouts",),
    "prompts": ("prompts",),
    "adapter": ("adapters",),
    "reference": ("references",),
    "schedule": ("schedules",),
    "parser": ("parsers",),
    "transform": ("transforms",),
    "measure": ("measures",),
    "report": ("reports",),
    "environment": ("environments",),
    "array_environment": ("array_environments",),
    "family": ("families",),
    "testbed": ("testbeds",),
    "health": ("health",),
}


def piece(
    *,
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    outputs: Iterable[str] = (),
    readers: Mapping[str, Shape] | None = None,
    models: Iterable[str] = (),
    unit: Unit = "row",
    paper: str = "",
    gold: bool = False,
    means: Iterable[str] = (),
    compares: bool = False,
    makes: Makes = "",
    by_group: bool = False,
    whole: bool = False,
    value_head: bool = False,
) -> Callable[[F], F]:
    """Declare a piece. Returns the function unchanged.

    - `reads`, `writes`: columns (`{option}` is filled in from the recipe).
    - `outputs`: outputs that the learner must compute; of an adapter: those that it can train (none: all).
    - `readers`: further outputs -> their shape. Each is a function of the same file,
      (`models.reading.Reading`, *, options) -> Tensor, over the shared forward pass; its options are those
      of the piece that have their names.
    - `models`: models used, in addition to those named by the options `model` and `models`.
    - `unit`: what must not be split between micro-batches.
    - `gold`: a verifier that gives a prompt's own `answer` the reward 1.
    - `means`: functions of the same file, (outputs, batch) -> (B,), whose means over the step are passed to
      the objective as columns.
    - `compares`: needs at least two answers per prompt; of a report: the arms' answers to the same prompts.
    - `makes`: groups that a selector returns: preference pairs (chosen first), single answers, or ("")
      unchanged.
    - `by_group`: an annotator whose values for a group depend on it alone, so that ranks share the groups.
      Rewards lifted by `each` are.
    - `whole`: a measure that is one number of all answers, which every answer has: prompts give it no
      interval.
    - `value_head`: the readers read the model's value head.
    """

    def mark(function: F) -> F:
        return function

    return mark


SETS = ("reads", "writes", "outputs", "models", "means")
"""Declarations that are sets of names."""


@dataclass(frozen=True)
class Description:
    """Declarations of a piece, read from its source."""

    slot: str
    name: str
    module: str
    function: str
    path: Path
    doc: str
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    readers: Mapping[str, Shape] = field(default_factory=dict)
    models: frozenset[str] = frozenset()
    unit: Unit = "row"
    paper: str = ""
    gold: bool = False
    means: frozenset[str] = frozenset()
    compares: bool = False
    makes: Makes = ""
    by_group: bool = False
    whole: bool = False
    value_head: bool = False
    memory: bool = False
    options: Mapping[str, Option] = field(default_factory=dict)

    def named(
        self, which: Literal["reads", "writes", "models"], options: Mapping[str, Any]
    ) -> frozenset[str]:
        """Declared columns or models with `{option}` filled in; a list option yields one name per entry, a
        mapping one per key. Models include those of pieces in the options.
        """
        names: set[str] = set()
        for option in self.options.values() if which == "models" else ():
            if option.nested and (inner := options.get(option.name, option.default)):
                names |= describe(option.nested, inner["name"]).named("models", inner)
        for template in getattr(self, which):
            fields = re.findall(r"{(\w+)}", template)
            if not fields:
                names.add(template)
                continue
            value = options.get(fields[0], self.options[fields[0]].default)
            for one in value if isinstance(value, (list, tuple, Mapping)) else [value]:
                names.add(template.replace("{" + fields[0] + "}", str(one)))
        return frozenset(names)


def catalogue(slot: str) -> Mapping[str, Description]:
    """Every piece of a slot, by its name in recipes. Folders are listed again when a file came or went."""
    folders = [ROOT / "pieces" / folder for folder in SLOTS[slot]]
    return _catalogue(slot, ROOT, tuple(folder.stat().st_mtime_ns for folder in folders))


@functools.cache
def _catalogue(slot: str, root: Path, changed: tuple[int, ...]) -> Mapping[str, Description]:
    found = dict[str, Description]()
    for folder in SLOTS[slot]:
        for path in sorted((root / "pieces" / folder).glob("*.py")):
            if path.stem == "__init__":
                continue
            for function, description in _read(slot, folder, path).items():
                short = path.stem if function == path.stem else f"{path.stem}.{function}"
                found[f"{folder}.{short}" if len(SLOTS[slot]) > 1 else short] = description
    return found


@functools.cache
def _read(slot: str, folder: str, path: Path) -> dict[str, Description]:
    tree = ast.parse(path.read_text(), filename=str(path))
    module_doc = ast.get_docstring(tree) or ""
    pieces: dict[str, Description] = {}
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        mark = next(
            (
                d
                for d in node.decorator_list
                if isinstance(d, ast.Call) and isinstance(d.func, ast.Name) and d.func.id == "piece"
            ),
            None,
        )
        if mark is None:
            continue
        declared: dict[str, Any] = {k.arg: ast.literal_eval(k.value) for k in mark.keywords if k.arg}
        signature = (
            node
            if isinstance(node, ast.FunctionDef)
            else next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
        )
        name = node.name if isinstance(node, ast.FunctionDef) else snake_case(node.name)
        doc = ast.get_docstring(node) or module_doc
        options = options_of(signature) if signature else {}
        names = ("model", "models")
        own = [*declared.get("models", ()), *(f"{{{option}}}" for option in names if option in options)]
        declared |= {"models": own, "by_group": declared.get("by_group", False) or is_lifted(node)}
        sets = {key: frozenset(declared[key]) for key in SETS if key in declared}
        pieces[name] = Description(
            slot=slot,
            name=name,
            module=f"ratchet.components.pieces.{folder}.{path.stem}",
            function=node.name,
            path=path,
            doc=doc,
            memory=any(isinstance(f, ast.FunctionDef) and f.name == "restore" for f in node.body),
            options=options,
            **{**declared, **sets},
        )
    return pieces


def describe(slot: str, name: str, *, where: str = "") -> Description:
    """The description of a piece. `RecipeError` with the nearest name if it does not exist."""
    known = catalogue(slot)
    if not isinstance(name, str) or name not in known:
        at = f"{where}: " if where else ""
        raise RecipeError(f"{at}no {slot} piece named {name!r}{nearest(str(name), known)}")
    return known[name]


def resolve(
    slot: str, spec: Mapping[str, Any] | str, *, where: str = "", reserved: Iterable[str] = ()
) -> dict[str, Any]:
    """A spec with every default written out. `RecipeError` for unknown or missing options."""
    spec = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(spec, Mapping) or "name" not in spec:
        raise RecipeError(f"{where or slot}: a piece needs a `name`, got {spec!r}")
    description = describe(slot, spec["name"], where=where)
    given = {k: v for k, v in spec.items() if k != "name" and k not in reserved}
    for key in given:
        if key not in description.options:
            hint = nearest(key, [*description.options, *reserved])
            raise RecipeError(f"{where or slot}: {spec['name']!r} takes no {key!r}{hint}")
    full: dict[str, Any] = {"name": spec["name"]}
    for option in description.options.values():
        if option.required and given.get(option.name) is None:
            raise RecipeError(
                f"{where or slot}: {spec['name']!r} needs {option.name!r} ({option.annotation})"
            )
        kind, value = option.kind, given.get(option.name)
        if option.nested:
            full[option.name] = resolve(
                option.nested, value or option.default, where=f"{where or slot}.{option.name}"
            )
            continue
        if (value is None and not takes_null(kind)) or option.name not in given:  # null: use the default
            value = option.default
        elif not (
            slot == "objective" and isinstance(value, Mapping) and is_number(kind)
        ):  # a schedule in place of a number
            value = conform(kind, value, f"{where or slot}.{option.name}")
        full[option.name] = value
    consistent(full, f"{where or slot}: {spec['name']!r}")
    full.update({k: spec[k] for k in reserved if k in spec})
    return full


def models_of(rollout: Mapping[str, Any]) -> frozenset[str]:
    """Models that a rollout names, with those of its environment, besides the policy."""
    return describe("rollout", rollout["name"]).named("models", rollout) - {"policy"}


def build(slot: str, spec: Mapping[str, Any], *, reserved: Iterable[str] = ()) -> Any:
    """Import a piece and bind its options: classes are constructed, functions partially applied."""
    full = resolve(slot, spec, reserved=reserved)
    description = describe(slot, full["name"])
    target = getattr(importlib.import_module(description.module), description.function)
    options = {k: full[k] for k in description.options}
    return target(**options) if isinstance(target, type) else functools.partial(target, **options)


def each(function: Callable[..., float | None]) -> Callable[..., Any]:
    """Lift `f(prompt, trajectory, **options) -> float | None` to a reward over groups, in the column
    `reward.<function name>`. An exception or a number that is not finite is a failed reward (status `failed:
    ...`), never 0; `None` is a skipped one.
    """

    @functools.wraps(function)
    def lifted(groups, ctx, **options):
        name = f"reward.{function.__name__}"
        values, statuses = [], []
        for group in groups:
            row, status = [], []
            for trajectory in group.trajectories:
                try:
                    value = function(group.prompt, trajectory, **options)
                    if value is not None and not math.isfinite(value):
                        raise ValueError(f"the reward is {value}")
                    row.append(value)
                    status.append("ok" if value is not None else "skipped: the reward does not apply")
                except Exception as error:  # user code may raise anything; a failure is recorded, not raised
                    row.append(None)
                    status.append(f"failed: {type(error).__name__}: {error}")
                advance()
            values.append(row)
            statuses.append(status)
        return {name: values, f"{name}.status": statuses}

    return lifted
