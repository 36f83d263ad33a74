"""Parsed Python files for digests of code, which say after which changes a stage runs again.

A file is a list of top-level statements, each with its normalised text and its references. The text has no
comments, docstrings and messages of errors that end a stage, and annotations only where code may read them:
of class attributes (a dataclass) and of functions with a decorator `register` (singledispatch).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ratchet.components.errors import FATAL

PREFIX = "ratchet."
PACKAGES = ("components", "tasks", "flows")
PURE_DECORATORS = {
    "piece",
    "each",
    "record",
    "final",
    "dataclass",
    "dataclass_transform",
    "runtime_checkable",
    "functools",
    "contextlib",
}
"""Decorators (or their modules) without side effects. A definition under any other counts whenever its module
is imported.
"""
ERRORS = f"{PREFIX}components.errors"
TAKE_PIECE_NAMES = ("build", "describe", "resolve")  # functions with the name of a piece as an argument
WITHOUT_MEANING = ("ctx", "type_comment", "kind")  # fields of syntax trees that no behaviour depends on
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """Target of an imported name: a module, or one of its attributes."""

    module: str
    attribute: str = ""


@dataclass
class Statement:
    """A top-level statement: its normalised syntax tree as text, and its references."""

    text: str = ""
    dotted_names: set[tuple[str, ...]] = field(default_factory=set)  # ("np", "random", "default_rng")
    strings: set[str] = field(default_factory=set)
    decorator_strings: set[str] = field(default_factory=set)
    piece_names: set[str] = field(default_factory=set)  # strings that may be short names of pieces
    imports: dict[str, list[Import]] = field(default_factory=dict)  # of our modules, within the statement
    modules: set[str] = field(default_factory=set)  # of ours, which the statement imports


@dataclass
class Module:
    """A parsed file: numbers of the statements that bind a name, run at import or run as a script, and its
    imports.
    """

    name: str
    path: Path
    body: Sequence[ast.stmt]
    names: dict[str, list[int]] = field(default_factory=dict)
    imports: dict[str, list[Import]] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    starred: list[str] = field(default_factory=list)
    effects: list[int] = field(default_factory=list)
    script: list[int] = field(default_factory=list)
    read: dict[int, Statement] = field(default_factory=dict)

    def statement(self, number: int) -> Statement:
        if number not in self.read:
            self.read[number] = _Reader(self.name).statement(self.body[number])
        return self.read[number]


class _Reader:
    """Serialises a statement and collects its references."""

    def __init__(self, module: str) -> None:
        self.module, self.found, self.parts = module, Statement(), list[str]()
        self.in_class = self.annotated = False

    def statement(self, node: ast.stmt) -> Statement:
        self.write(node)
        self.found.text = "".join(self.parts)
        return self.found

    def write(self, node: object) -> None:
        match node:
            case list():
                self.parts.append("[")
                for one in node:
                    self.write(one)
                self.parts.append("]")
            case ast.Expr(value=ast.Constant()) | ast.Pass():  # docstring
                pass
            case ast.Import() | ast.ImportFrom() if self._import(node):
                pass
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name))) if name in FATAL:
                self.parts.append(f"(Raise {name})")
            case ast.Name() | ast.Attribute() if name := _dotted_name(node):
                self.found.dotted_names.add(name)
                self.parts.append(" " + ".".join(name))
            case ast.Constant(value=value):
                if isinstance(value, str):
                    self.found.strings.add(value)
                self.parts.append(f" {value!r}")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                decorators = [_decorator(d) for d in node.decorator_list]
                registers = any(one and one[-1] == "register" for one in decorators)  # singledispatch
                self._fields(
                    node, in_class=False, annotated=registers, without=() if registers else ("returns",)
                )
            case ast.ClassDef():
                self._fields(node, in_class=True)
            case ast.AnnAssign() if not (self.in_class or self.annotated):
                if node.value is not None:  # equivalent to the assignment without annotation
                    self.write(ast.Assign([node.target], node.value))
            case ast.arg() if not self.annotated:
                self.parts.append(" " + node.arg)
            case ast.AST():
                self._fields(node, in_class=self.in_class, annotated=self.annotated)
            case _:
                self.parts.append(f" {node!r}")

    def _piece_names(self, node: ast.AST) -> None:
        """Record strings that may name a piece: values of `name` in a dictionary or a call, and arguments of
        the functions `TAKE_PIECE_NAMES`.
        """
        named: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            named = [
                value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and key.value == "name"
            ]
        elif isinstance(node, ast.Call):
            named = [key.value for key in node.keywords if key.arg == "name"]
            if (function := _dotted_name(node.func)) and function[-1] in TAKE_PIECE_NAMES:
                named += node.args
        self.found.piece_names |= {
            one.value for one in named if isinstance(one, ast.Constant) and isinstance(one.value, str)
        }

    def _fields(
        self, node: ast.AST, *, in_class: bool, annotated: bool = False, without: Sequence[str] = ()
    ) -> None:
        self._piece_names(node)
        before = self.in_class, self.annotated
        self.in_class, self.annotated = in_class, annotated
        self.parts.append(f"({type(node).__name__}")
        for name in node._fields:
            if name not in WITHOUT_MEANING and name not in without:
                if name == "decorator_list":
                    self.found.decorator_strings |= {
                        c.value
                        for d in getattr(node, name)
                        for c in ast.walk(d)
                        if isinstance(c, ast.Constant) and isinstance(c.value, str)
                    }
                self.parts.append(f" {name}=")
                self.write(getattr(node, name, None))
        self.parts.append(")")
        self.in_class, self.annotated = before

    def _import(self, node: ast.Import | ast.ImportFrom) -> bool:
        """Record an import. True if it imports only this package: then it is not part of the text, since its
        names are traced.
        """
        names, modules, starred = _bound(node, self.module)
        own = {name: [one for one in all_ if ours(one.module)] for name, all_ in names.items()}
        for name, all_ in own.items():
            self.found.imports.setdefault(name, []).extend(all_)
        self.found.modules |= modules
        return all(own.values()) and not starred


def _bound(
    node: ast.Import | ast.ImportFrom, module: str
) -> tuple[dict[str, list[Import]], set[str], list[str]]:
    """Names bound by an import, modules of this package it executes, and modules imported with `*`."""
    names: dict[str, list[Import]] = {}
    if isinstance(node, ast.Import):
        for alias in node.names:
            one = Import(alias.name) if alias.asname else Import(alias.name.split(".")[0])
            names.setdefault(alias.asname or one.module, []).append(one)
        return names, {alias.name for alias in node.names if ours(alias.name)}, []
    source = (
        ".".join(filter(None, [*module.split(".")[: -node.level], node.module]))
        if node.level
        else node.module or ""
    )
    starred = [source for alias in node.names if alias.name == "*" and ours(source)]
    for alias in node.names:
        names.setdefault(alias.asname or alias.name, []).append(Import(source, alias.name))
    return (
        names,
        {source, *(f"{source}.{alias.name}" for alias in node.names)} if ours(source) else set(),
        starred,
    )


def parse(name: str, path: Path, text: str) -> Module:
    body = ast.parse(text, filename=str(path)).body
    module = Module(name, path, body)
    functions = {node.name for node in body if isinstance(node, Function)}
    for number, node in enumerate(body):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign | ast.AugAssign)
            else []
        )
        imports = (
            [one for one in ast.walk(node) if isinstance(one, ast.Import | ast.ImportFrom)]
            if not isinstance(node, Function | ast.ClassDef)
            else []
        )
        for one in imports:
            names, modules, starred = _bound(one, name)
            for alias, all_ in names.items():
                module.imports.setdefault(alias, []).extend(all_)
            module.modules |= modules if not _is_if_on(node, "TYPE_CHECKING") else set()
            module.starred += starred
        if isinstance(node, Function | ast.ClassDef):
            module.names.setdefault(node.name, []).append(number)
            if not _pure(node):
                module.effects.append(number)
        elif targets and all(isinstance(part, ast.Name | ast.Tuple) for part in targets):
            for part in (
                part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
            ):
                module.names.setdefault(part.id, []).append(number)
            if any(_calls(call, functions, module) for call in ast.walk(node) if isinstance(call, ast.Call)):
                module.effects.append(number)
        elif _is_if_on(node, "__name__"):
            module.script.append(number)
        elif not (
            isinstance(node, ast.Import | ast.ImportFrom)
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or _is_if_on(node, "TYPE_CHECKING")
        ):
            module.effects.append(number)
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    module.names.setdefault(part.id, []).append(number)
                elif isinstance(part, Function | ast.ClassDef):
                    module.names.setdefault(part.name, []).append(number)
    return module


def _calls(call: ast.Call, functions: set[str], module: Module) -> bool:
    """Whether the call may execute a function of ours. (Class names start with a capital.)"""
    name = _dotted_name(call.func)
    return (
        bool(name)
        and name[-1].islower()
        and (name[0] in functions or any(ours(one.module) for one in module.imports.get(name[0], ())))
    )


def _is_if_on(node: ast.stmt, name: str) -> bool:
    """Whether the statement is an `if` without `else` whose condition reads `name`."""
    return (
        isinstance(node, ast.If)
        and not node.orelse
        and any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node.test))
    )


def _pure(node: Function | ast.ClassDef) -> bool:
    return all((name := _decorator(d)) and name[0] in PURE_DECORATORS for d in node.decorator_list)


def _decorator(node: ast.expr) -> tuple[str, ...]:
    return _dotted_name(node.func if isinstance(node, ast.Call) else node)


def _dotted_name(node: ast.AST) -> tuple[str, ...]:
    """A dotted name as a tuple; empty for any other expression."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, *reversed(attributes)) if isinstance(node, ast.Name) else ()


def ours(module: str) -> bool:
    package, _, rest = module.partition(".")
    return f"{package}." == PREFIX and (not rest or rest.split(".")[0] in PACKAGES)
