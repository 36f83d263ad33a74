"""Annotations of engines and tokenizers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = {"engine", "target_engine", "tokenizer"}


def annotations(tree: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Names of parameters, variables, attributes and functions with their annotations."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=written):
                yield name, written
            case (
                ast.FunctionDef(name=name, returns=written) | ast.AsyncFunctionDef(name=name, returns=written)
            ):
                yield name, written
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=written):
                yield name, written


def test_engines_and_tokenizers_are_typed() -> None:
    """With a protocol, not `Any`."""
    found = [
        (str(path.relative_to(ROOT)), name.lstrip("_"), written)
        for folder in ("components", "tasks", "flows")
        for path in (ROOT / folder).rglob("*.py")
        for name, written in annotations(ast.parse(path.read_text()))
        if name.lstrip("_") in NAMES and written is not None
    ]
    assert len(found) > 50
    untyped = {(file, name) for file, name, written in found if ast.unparse(written) in ("Any", "Any | None")}
    assert untyped == set()
