"""Static tracing of Python definitions: the digest of the source code that a function can reach.

From some functions on, `Sources` follows the names they use to top-level functions, classes and assignments of our own packages: over
imports (those within functions and re-exports too), attributes of modules, decorators, bases and methods. It hashes the syntax trees of
what it finds, without comments, docstrings and the annotations of functions and variables. A definition that moves to another module keeps
its hash.

What cannot be followed counts as a whole, so that no change of behaviour can be missed: all of a module that is used as a value, that a
string names or that does not define the attribute asked of it. Statements that do more than bind a name (registrations, environment
variables) count when their module is imported. A piece is reached by its full name in any string (`rewards.length`), by a short one where
it stands as `name` (`{"name": "sample"}`); a data file beside the module, such as a template, by its name. `__file__` reaches all of them,
and what the module does when it is run as a script.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ratchet.components.storage.syntax import PREFIX, Import, Module, Statement, ours, parse

ROUNDS = 3
"""How far the hash of a definition looks along its references, to tell apart those that are written alike."""
DATA = re.compile(r"(?!.*\.pyc?$)\w[\w.-]*\.\w+")


class Node(NamedTuple):
    """Of a module the top-level statement of a number; or by name an import from elsewhere (`np`), a data file beside it (`report.html.j2`),
    what happens when it is imported (`<import>`) or run as a script (`<script>`), or all of it (`<all>`)."""

    module: str
    what: int | str


class Sources:
    """The source files below `root`. `pieces` are the definitions that strings name: name -> (module, function); `changed` replaces the
    text of files."""

    def __init__(self, root: Path, pieces: Mapping[str, tuple[str, str]] | None = None, changed: Mapping[Path, str] | None = None) -> None:
        self.root, self.pieces, self.changed = root, pieces or {}, changed or {}
        self._modules: dict[str, Module | None] = {}
        self._edges: dict[Node, dict[str, set[Node]]] = {}
        self._hashes: dict[tuple[Node, int], str] = {}

    def digest(self, starts: Iterable[tuple[str, str]]) -> str:
        """Of all that is reached from some definitions, each (module, name)."""
        return _sha(*sorted({self._hash(node, ROUNDS) for node in self.reached(starts)}))

    def reached(self, starts: Iterable[tuple[str, str]]) -> set[Node]:
        """`KeyError` for a start that is not defined."""
        queue = [node for module, name in starts for node in self.defined(module, name)]
        seen: set[Node] = set()
        while queue:
            node = queue.pop()
            if node not in seen:
                seen.add(node)
                queue += [target for targets in self.edges(node).values() for target in targets]
        return seen

    def defined(self, name: str, attribute: str) -> list[Node]:
        module = self.module(name)
        if module is None or attribute not in module.names:
            raise KeyError(f"{name} defines no {attribute}")
        return [Node(name, number) for number in module.names[attribute]]

    def module(self, name: str) -> Module | None:
        """None for what is no module of ours."""
        if name not in self._modules:
            place, known = self.root.joinpath(*name.removeprefix(PREFIX).split(".")), ours(name) and not name.endswith(".")
            path = next((p for p in (place.with_suffix(".py"), place / "__init__.py") if known and p.is_file()), None)
            if path is None:
                self._modules[name] = None
            elif path in self.changed:
                self._modules[name] = parse(name, path, self.changed[path])
            else:
                self._modules[name] = _from_disk(name, path, path.stat().st_mtime_ns, path.stat().st_size)
        return self._modules[name]

    def edges(self, node: Node) -> dict[str, set[Node]]:
        """What a node leads to, by the name it has for it; `<...>` where it has none."""
        if node not in self._edges:
            self._edges[node] = {}
            for label, target in self._followed(node):
                self._edges[node].setdefault(label, set()).add(target)
        return self._edges[node]

    def _followed(self, node: Node) -> Iterator[tuple[str, Node]]:
        module = self.module(node.module)
        if module is None:
            return
        if isinstance(node.what, int):
            yield "<import>", Node(module.name, "<import>")
            yield from self._references(module, module.statement(node.what))
        elif node.what == "<import>":
            yield from (("<effect>", Node(module.name, number)) for number in module.effects)
            packages = {module.name.rpartition(".")[0]}
            yield from (("<import>", Node(name, "<import>")) for name in module.modules | packages if self.module(name))
        elif node.what == "<script>":
            yield from (("<script>", Node(module.name, number)) for number in module.script)
        elif node.what == "<all>":
            yield "<import>", Node(module.name, "<import>")
            yield from (("<all>", Node(module.name, number)) for number in range(len(module.body)))
            yield from (("<all>", Node(name, "<all>")) for name in module.starred)

    def _references(self, module: Module, statement: Statement) -> Iterator[tuple[str, Node]]:
        for chain in statement.chains:
            first = chain[0]
            targets = [t for one in statement.imports.get(first, ()) for t in self._imported(one, chain[1:])]
            targets += self._named(module, chain)
            yield from ((".".join(chain), target) for target in targets)
        for name in statement.modules:
            if self.module(name):
                yield "<import>", Node(name, "<import>")
        for text in statement.strings:
            if ours(text) and self.module(text):
                yield text, Node(text, "<all>")
            elif text in self.pieces and ("." in text or text in statement.specs):
                yield from ((text, node) for node in self.defined(*self.pieces[text]))
            elif DATA.fullmatch(text) and (module.path.parent / text).is_file():
                yield text, Node(module.name, text)
        for text in statement.declared & module.names.keys():
            yield from ((text, node) for node in self.defined(module.name, text))

    def _named(self, module: Module, chain: Sequence[str]) -> Iterator[Node]:
        """What a name with its attributes means in a module; nothing for a local variable or a built-in one."""
        name = chain[0]
        if name == "__file__":
            yield from self._file(module)
        elif name == "globals":
            yield Node(module.name, "<all>")
        yield from (Node(module.name, number) for number in module.names.get(name, ()))
        for one in module.imports.get(name, ()):
            if ours(one.module):
                yield from self._imported(one, chain[1:])
            else:
                yield Node(module.name, name)
        if name not in module.names and name not in module.imports:
            for starred in filter(None, map(self.module, module.starred)):
                if name in starred.names or name in starred.imports or starred.starred:
                    yield from self._named(starred, chain)

    def _imported(self, one: Import, rest: Sequence[str]) -> Iterator[Node]:
        chain = [*([one.attribute] if one.attribute else []), *rest]
        if chain:
            yield from self._member(one.module, chain)
        else:
            yield Node(one.module, "<all>")

    def _member(self, name: str, chain: Sequence[str]) -> Iterator[Node]:
        """What an attribute of a module, with its own, means."""
        module, attribute, rest = self.module(name), chain[0], chain[1:]
        if module and (attribute in module.names or attribute in module.imports):
            yield from self._named(module, chain)
        elif self.module(f"{name}.{attribute}") or not module:
            yield from self._imported(Import(f"{name}.{attribute}"), rest)
        elif attribute == "__file__":
            yield from self._file(module)
        else:
            yield Node(name, "<all>")

    def _file(self, module: Module) -> Iterator[Node]:
        yield Node(module.name, "<script>")
        yield from (Node(module.name, p.name) for p in module.path.parent.iterdir() if DATA.fullmatch(p.name) and p.is_file())

    def _hash(self, node: Node, rounds: int) -> str:
        """Of a node's own text and, as far as `rounds` go, of what it names. Empty where there is no text: its parts count by themselves."""
        if (node, rounds) not in self._hashes:
            module, text = self.module(node.module), ""
            if module and isinstance(node.what, int):
                text = module.statement(node.what).text
            elif module and "." in str(node.what):
                text = _sha(str(node.what), (module.path.parent / str(node.what)).read_bytes().hex())
            elif module and (bound := module.imports.get(str(node.what))):
                text = f"{node.what} = {bound}"
            named = [] if rounds == 0 else [_sha(label, *sorted(self._hash(target, rounds - 1) for target in targets))
                                            for label, targets in sorted(self.edges(node).items()) if not label.startswith("<")]
            self._hashes[node, rounds] = _sha(text, *named) if text else ""
        return self._hashes[node, rounds]


@functools.lru_cache(maxsize=1024)
def _from_disk(name: str, path: Path, changed: int, size: int) -> Module:
    return parse(name, path, path.read_text())


def _sha(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
