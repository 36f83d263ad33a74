"""Validation of YAML values against type annotations with pydantic. The first error becomes one sentence:
where, expected, got, nearest name.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import is_typeddict

from ratchet.components.errors import RecipeError, nearest

T = TypeVar("T")
EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "dict": "a mapping",
    "mapping": "a mapping",
    "dataclass": "a mapping",
    "list": "a list",
    "tuple": "a list",
    "sequence_str": "a list",
    "is_instance_of": "a list",
}
"""pydantic error type without the suffix `_type` -> expected value."""
BOUNDS = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "{} or more"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "at most {}"),
    "too_short": ("min_length", "at least {} entries"),
    "too_long": ("max_length", "at most {} entries"),
}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, Field))
def record(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass with validated fields."""
    made: Any = dataclass(frozen=True, config=ConfigDict(extra="forbid"))(cls)
    init = made.__init__

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **values: Any) -> None:
        try:
            init(self, *args, **values)
        except ValidationError as error:
            raise RecipeError(_sentence(error, cls.__name__.lower())) from None

    made.__init__ = checked
    return made


def conform(kind: Any, value: Any, where: str) -> Any:
    """Validate `value` against the annotation `kind`; `where` is its path for messages. A null is ignored
    where `kind` does not allow it. Raises `RecipeError`.
    """
    try:
        return _adapter(kind).validate_python(_without_nulls(kind, value, where))
    except ValidationError as error:
        raise RecipeError(_sentence(error, where, value)) from None


def consistent(options: Mapping[str, Any], where: str) -> None:
    """`RecipeError` for options of a piece that contradict each other: a `min_` above its `max_`, another
    number of `weights` than of `rewards`.
    """
    for name, low in options.items():
        high = options.get(name.replace("min_", "max_")) if name.startswith("min_") else None
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high:
            raise RecipeError(
                f"{where} keeps nothing: {name} {low} is greater than {name.replace('min_', 'max_')} {high}"
            )
    weights, rewards = options.get("weights"), options.get("rewards")
    if isinstance(weights, list) and isinstance(rewards, list) and len(weights) != len(rewards):
        raise RecipeError(
            f"{where}: expected one weight per reward, got {len(weights)} weights for {len(rewards)} rewards "
            f"({', '.join(rewards)})"
        )


RENAMED_KEYS = {
    "judge": "reward",
    "above": "over",
    "under": "below",
    "min_contrast_accuracy": "min_accuracy_by_kind: {contrast: ...}",
    "offload_optimiser": "offload_optimizer",
}
"""Old keys of recipes and profiles, besides the words of `errors.RENAMED`, and how they are written now."""


def renamed(key: str, known: Iterable[str]) -> str:
    """A hint with the present name of an old key; empty if `known` has no such key.

    >>> renamed("under", ["over", "below"])
    '; it was renamed to below'
    """
    new = RENAMED_KEYS.get(key, "")
    return f"; it was renamed to {new}" if new.partition(":")[0] in known else ""


def known_keys(given: Iterable[object], known: Iterable[str], where: str) -> None:
    """`RecipeError` for the first unknown key, with its new name if it was renamed, else the nearest."""
    known = list(known)
    for key in given:
        if key not in known:
            raise RecipeError(
                f"{where + '.' if where else ''}{key}: unknown key {key!r}"
                f"{renamed(str(key), known) or nearest(str(key), known)}"
            )


@functools.lru_cache(None)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def takes_null(kind: Any) -> bool:
    return kind is Any or kind is type(None) or any(takes_null(part) for part in _members(kind))


def is_number(kind: Any) -> bool:
    """Whether the annotation is, or allows, a float."""
    plain = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    return plain is float or any(is_number(part) for part in _members(kind))


def _members(kind: Any) -> tuple[Any, ...]:
    """Member types of a union, also of an annotated one."""
    if typing.get_origin(kind) is typing.Annotated:
        return _members(typing.get_args(kind)[0])
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else ()


def _chosen(members: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    """Of a union of records told apart by the key `does`, the one of `value`; otherwise all members."""
    kinds = {
        typing.get_args(_hints(part)["does"])[0]: part
        for part in members
        if dataclasses.is_dataclass(part) and "does" in _hints(typing.cast(type, part))
    }
    if len(kinds) < 2 or not isinstance(value, Mapping):
        return members
    does = value.get("does")
    if does not in kinds:
        got = f"got {does!r}{nearest(str(does), kinds)}" if does else "got none"
        raise RecipeError(f"{where}.does: expected one of {', '.join(kinds)}, {got}")
    return (kinds[does],)


def _without_nulls(kind: Any, value: Any, where: str) -> Any:
    """`value` without keys that are null where null is not allowed; unknown keys raise `RecipeError`."""
    for part in _chosen(_members(kind), value, where) or (kind,):
        part = typing.get_args(part)[0] if typing.get_origin(part) is typing.Annotated else part
        origin, inside = typing.get_origin(part), typing.get_args(part)
        if isinstance(value, Mapping) and (dataclasses.is_dataclass(part) or is_typeddict(part)):
            hints = _hints(typing.cast(type, part))
            known_keys(value, hints, where)
        elif (
            isinstance(value, Mapping) and inside and isinstance(origin, type) and issubclass(origin, Mapping)
        ):
            if typing.get_origin(inside[0]) is Literal:
                known_keys(value, typing.get_args(inside[0]), where)
            hints = dict.fromkeys(value, inside[1])
        elif (
            inside
            and isinstance(origin, type)
            and issubclass(origin, Sequence)
            and isinstance(value, (list, tuple))
        ):
            return [_without_nulls(inside[0], inner, f"{where}[{i}]") for i, inner in enumerate(value)]
        else:
            continue
        return {
            key: _without_nulls(hints[key], inner, f"{where}.{key}" if where else str(key))
            for key, inner in value.items()
            if inner is not None or takes_null(hints[key])
        }
    return value


def _within(path: Sequence[Any], value: Any) -> list[Any]:
    """The path without names of union members, which are no keys of `value`."""
    kept = []
    for i, part in enumerate(path):
        if isinstance(value, Mapping) and part not in value and i < len(path) - 1:
            continue
        kept.append(part)
        inside = isinstance(value, Mapping) or (isinstance(value, list) and isinstance(part, int))
        value = value[part] if inside and i < len(path) - 1 else None
    return kept


def _sentence(error: ValidationError, where: str, value: Any = None) -> str:
    errors = error.errors(include_url=False)
    first = errors[0]
    if isinstance(
        first["input"], Mapping
    ):  # for a union, report the error of the member that accepts a mapping
        first = next(
            (
                other
                for other in errors
                if other["loc"][: len(first["loc"]) - 1] == first["loc"][:-1]
                and len(other["loc"]) > len(first["loc"])
            ),
            first,
        )
    kind, got, more = first["type"], first["input"], first.get("ctx", {})
    path = [
        p
        for p in _within(first["loc"], value)
        if isinstance(p, int)
        or not ("[" in p or p in ("bool", "int", "float", "str", "constrained-float", "Part"))
    ]  # pydantic adds names of union members to the path
    missing = str(path.pop()) if kind in ("missing", "missing_argument") else ""
    at = where + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
    at = at.lstrip(".")
    if missing:
        return f"{at or 'recipe'}: needs {missing!r}"
    if kind == "value_error":
        return str(more["error"]) if isinstance(more["error"], RecipeError) else f"{at}: {more['error']}"
    if kind == "literal_error":
        allowed = [word.strip("'") for word in str(more["expected"]).replace(" or ", ", ").split(", ")]
        hint = nearest(str(got), allowed).partition("; known")[0]
        return f"{at}: {got!r} is not one of {', '.join(allowed)}{hint}"
    if kind in BOUNDS:
        name, text = BOUNDS[kind]
        return f"{at}: expected {text.format(f'{more[name]:g}')}, got {got!r}"
    expected = (
        "a finite number"
        if kind == "finite_number"
        else EXPECTED.get(kind.removesuffix("_type").removesuffix("_exact"), first["msg"])
    )
    return f"{at}: expected {expected}, got {got!r}"
