"""Static tracing of Python definitions: digest of the source code reachable from a function, for store keys.

Starting from some functions, `Sources` follows the names they use to top-level functions, classes and
assignments of this package: through imports (also inside functions, and re-exports), module attributes,
decorators, base classes and methods. It hashes the syntax trees found, without comments, docstrings and
annotations of functions and variables, and without what no output depends on: the messages of errors that end
a stage, and `components/errors.py`. A definition moved to another module keeps its hash.

What cannot be traced counts as a whole, so that no change of behaviour is missed: every definition of a
module that is used as a value, named in a string, or lacks the attribute requested. Module-level statements
with side effects (registrations, environment variables) count whenever their module is imported. A piece is
reached by its full name in any string (`rewards.length`) or by its short name as the value of `name`
(`{"name": "sample"}`); a data file next to the module, such as a template, by its file name. `__file__`
reaches all of these and the module's `__main__` block.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ratchet.components.storage.syntax import ERRORS, PREFIX, Import, Module, Statement, ours, parse

ROUNDS = 3
"""Depth of references included in the hash of a definition, to distinguish definitions with equal text."""
DATA = re.compile(r"(?!.*\.pyc?$)\w[\w.-]*\.\w+")


class Node(NamedTuple):
    """A graph node in a module: a top-level statement by number, an external import by name (`np`), a data
    file (`report.html.j2`), import side effects (`<import>`), the `__main__` block (`<script>`), or
    everything (`<all>`).
    """

    module: str
    what: int | str


class Sources:
    """The source files below `root`. `pieces`: piece name -> (module, function) of each of that name.
    `changed`: replacement text of files, for tests.
    """

    def __init__(
        self,
        root: Path,
        pieces: Mapping[str, tuple[tuple[str, str], ...]] | None = None,
        changed: Mapping[Path, str] | None = None,
    ) -> None:
        self.root, self.pieces, self.changed = root, pieces or {}, changed or {}
        self._modules: dict[str, Module | None] = {}
        self._edges: dict[Node, dict[str, set[Node]]] = {}
        self._hashes: dict[tuple[Node, int], str] = {}
        self._digests: dict[frozenset[tuple[str, str]], str] = {}

    def digest(self, starts: Iterable[tuple[str, str]]) -> str:
        """Digest of everything reachable from definitions given as (module, name)."""
        starts = frozenset(starts)
        if starts not in self._digests:
            self._digests[starts] = _sha(*sorted({self._hash(node, ROUNDS) for node in self.reached(starts)}))
        return self._digests[starts]

    def reached(self, starts: Iterable[tuple[str, str]]) -> set[Node]:
        """All nodes reachable from definitions given as (module, name). `KeyError` if one is not defined."""
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
        """The parsed module, or None if it is not part of this package."""
        if name not in self._modules:
            place, known = (
                self.root.joinpath(*name.removeprefix(PREFIX).split(".")),
                ours(name) and not name.endswith("."),
            )
            path = next(
                (p for p in (place.with_suffix(".py"), place / "__init__.py") if known and p.is_file()), None
            )
            if path is None:
                self._modules[name] = None
            elif path in self.changed:
                self._modules[name] = parse(name, path, self.changed[path])
            else:
                self._modules[name] = _from_disk(name, path, path.stat().st_mtime_ns, path.stat().st_size)
        return self._modules[name]

    def edges(self, node: Node) -> dict[str, set[Node]]:
        """Nodes referenced by a node, by the name used for them; `<...>` for implicit references."""
        if node not in self._edges:
            self._edges[node] = {}
            for label, target in self._followed(node):
                if target.module != ERRORS:
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
            yield from (
                ("<import>", Node(name, "<import>"))
                for name in module.modules | packages
                if self.module(name)
            )
        elif node.what == "<script>":
            yield from (("<script>", Node(module.name, number)) for number in module.script)
        elif node.what == "<all>":
            yield "<import>", Node(module.name, "<import>")
            yield from (("<all>", Node(module.name, number)) for number in range(len(module.body)))
            yield from (("<all>", Node(name, "<all>")) for name in module.starred)

    def _references(self, module: Module, statement: Statement) -> Iterator[tuple[str, Node]]:
        for name in statement.dotted_names:
            first, *rest = name
            targets = [t for one in statement.imports.get(first, ()) for t in self._imported(one, rest)]
            targets += self._named(module, name)
            yield from ((".".join(name), target) for target in targets)
        for name in statement.modules:
            if self.module(name):
                yield "<import>", Node(name, "<import>")
        for text in statement.strings:
            if ours(text) and self.module(text):
                yield text, Node(text, "<all>")
            elif text in self.pieces and ("." in text or text in statement.piece_names):
                yield from ((text, node) for at in self.pieces[text] for node in self.defined(*at))
            elif DATA.fullmatch(text) and (module.path.parent / text).is_file():
                yield text, Node(module.name, text)
        for text in statement.decorator_strings & module.names.keys():
            yield from ((text, node) for node in self.defined(module.name, text))

    def _named(self, module: Module, chain: Sequence[str]) -> Iterator[Node]:
        """Nodes that a name with its attributes refers to; none for local variables and built-ins."""
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
        """Nodes that an attribute chain of a module refers to."""
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
        yield from (
            Node(module.name, p.name)
            for p in module.path.parent.iterdir()
            if DATA.fullmatch(p.name) and p.is_file()
        )

    def _hash(self, node: Node, rounds: int) -> str:
        """Hash of a node's text and, up to depth `rounds`, of its references. Empty for nodes without text,
        whose parts are hashed individually.
        """
        if (node, rounds) not in self._hashes:
            module, text = self.module(node.module), ""
            if module and isinstance(node.what, int):
                text = module.statement(node.what).text
            elif module and "." in str(node.what):
                text = _sha(str(node.what), (module.path.parent / str(node.what)).read_bytes().hex())
            elif module and (bound := module.imports.get(str(node.what))):
                text = f"{node.what} = {bound}"
            named = (
                []
                if rounds == 0
                else [
                    _sha(label, *sorted(self._hash(target, rounds - 1) for target in targets))
                    for label, targets in sorted(self.edges(node).items())
                    if not label.startswith("<")
                ]
            )
            self._hashes[node, rounds] = _sha(text, *named) if text else ""
        return self._hashes[node, rounds]


@functools.lru_cache(maxsize=1024)
def _from_disk(name: str, path: Path, changed: int, size: int) -> Module:
    return parse(name, path, path.read_text())


def _sha(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
