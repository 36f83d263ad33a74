"""Static check that the function of a piece takes what a run passes to it."""

from __future__ import annotations

import ast
from pathlib import Path

from ratchet.components.errors import RecipeError
from ratchet.components.piece import Description
from ratchet.components.recipes.piece_source import is_lifted

PASSED = {
    "annotate": ("groups", "ctx"),
    "select": ("groups", "ctx"),
    "rollout": ("prompts", "ctx"),
    "objective": ("out", "batch"),
}
"""Slot -> arguments of a call. A run that got them wrong would end after what comes before the call."""
LIFTED = ("prompt", "trajectory")
"""Arguments of a function that `each` lifts."""


def check_signature(description: Description, where: str) -> None:
    """`RecipeError` if a call of the piece would be an error, or would pass groups as a prompt."""
    passed = PASSED.get(description.slot)
    node = _node(description.path, description.function)
    if passed is None or node is None:
        return
    lifted = is_lifted(node)
    function = node if isinstance(node, ast.FunctionDef) else _method(node, "__call__")
    if function is None:  # of a base class
        return
    takes = [*function.args.posonlyargs, *function.args.args][isinstance(node, ast.ClassDef) :]
    names = tuple(argument.arg for argument in takes)
    passed = LIFTED if lifted else passed
    needed = len(takes) - len(function.args.defaults)
    if needed > len(passed) or (len(passed) > len(takes) and not function.args.vararg):
        wrong = f"takes {', '.join(names) or 'nothing'}"
    elif not lifted and names == LIFTED:
        wrong = f"takes {', '.join(names)}, as one that `@each` lifts"
    else:
        return
    raise RecipeError(
        f"{where}: {description.name!r} is called with {', '.join(passed)}{' by `@each`' if lifted else ''}, "
        f"but {description.path.name} {wrong} (options are keyword-only, after `*`); correct the function, "
        "see docs/contributing.md"
    )


def _node(path: Path, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return next((n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name), None)


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)
