"""What the source of a piece declares: kinds of values, and the options of a function with their types."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from ratchet.components.recipes import ranges

Unit = Literal["step", "row", "pair", "group"]
Makes = Literal["", "pairs", "answers"]
NESTED = {
    "EnvironmentSpec": "environment",
    "ArrayEnvironmentSpec": "array_environment",
    "RewardSpec": "annotate",
    "SelectorSpec": "select",
}
"""Annotations of options that are pieces themselves -> their slots."""


@dataclass(frozen=True)
class Option:
    """A keyword-only argument of a piece: default (or `required`) and annotation as written."""

    name: str
    annotation: str
    default: Any = None
    required: bool = False

    @property
    def nested(self) -> str:
        """Slot of the piece that the option's value is; empty for other options."""
        return NESTED.get(self.annotation, "")

    @property
    def kind(self) -> Any:
        """The annotation as a type; `Any` (unchecked) if it uses names of the piece's own module."""
        known = {
            **vars(builtins),
            **vars(ranges),
            "int": ranges.Int,
            "float": ranges.Finite,
            "bool": ranges.Bool,
            "Any": Any,
            "Literal": Literal,
            "Mapping": Mapping,
            "Sequence": Sequence,
        }
        try:
            return _type(ast.parse(self.annotation, mode="eval").body, known)
        except (KeyError, SyntaxError):
            return Any


def _type(written: ast.expr, known: Mapping[str, Any]) -> Any:
    """Evaluate an annotation made of names, subscripts and `|`. `KeyError` for anything else."""
    match written:
        case ast.Name(id=name):
            return known[name]
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Union[_type(left, known), _type(right, known)]  # noqa: UP007
        case ast.Subscript(value=value, slice=inner):
            return _type(value, known)[_type(inner, known)]
        case ast.Tuple(elts=parts):
            return tuple(_type(part, known) for part in parts)
        case ast.List(elts=parts):
            return [_type(part, known) for part in parts]
    raise KeyError(ast.unparse(written))


def is_lifted(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether `each` lifts this function."""
    return any(isinstance(d, ast.Name) and d.id == "each" for d in node.decorator_list)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def options_of(function: ast.FunctionDef) -> dict[str, Option]:
    options: dict[str, Option] = {}
    for arg, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        annotation = ast.unparse(arg.annotation) if arg.annotation else ""
        if default is None:
            options[arg.arg] = Option(arg.arg, annotation, required=True)
        else:
            options[arg.arg] = Option(arg.arg, annotation, default=ast.literal_eval(default))
    return options
