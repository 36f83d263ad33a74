"""Source code that a stage depends on, as a digest for its store key."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ratchet.components.piece import ROOT, SLOTS, catalogue
from ratchet.components.recipes.plain_values import plain
from ratchet.components.stages import STAGES
from ratchet.components.storage.definitions import Sources

GENERATED = "generate:"  # address of a testbed's data
Places = tuple[tuple[str, str], ...]
"""(module, function) of every piece with one name."""
STARTS = ("ratchet.components.stages.job", "run_job")  # entry point shared by all stages


def source_digest(does: str, options: Mapping[str, Any], sources: Sources | None = None) -> str:
    """Digest of the definitions that a stage reaches (see `storage/definitions.py`): from its function, the
    job runner, and each piece in its options.
    """
    sources = sources or our_sources()
    return sources.digest(starts(does, options, sources.pieces))


def starts(
    does: str, options: Mapping[str, Any], pieces: Mapping[str, Places] | None = None
) -> set[tuple[str, str]]:
    """Definitions where a stage's execution starts, as (module, name). `pieces`: piece name -> its places;
    None reads those of the catalogue.
    """
    pieces = _pieces() if pieces is None else pieces
    work = {
        key: value for key, value in plain(options).items() if key != "resolved"
    }  # the whole recipe, copied by `evaluate`
    named = set(_named(work, pieces))
    return {(STAGES[does], does), STARTS, *(place for name in named for place in pieces[name])}


def our_sources(changed: Mapping[Path, str] | None = None) -> Sources:
    """The source code of the product; `changed`: file -> the text that counts instead. What was traced is
    kept until a file changes.
    """
    return Sources(ROOT.parent, _pieces(), changed) if changed else _unchanged(tuple(_files(ROOT.parent)))


@functools.lru_cache(maxsize=1)
def _unchanged(files: tuple[tuple[str, int, int], ...]) -> Sources:
    """The source code while these files are the same."""
    return Sources(ROOT.parent, _pieces())


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Path, time of change in nanoseconds and size of every file below a folder."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _files(Path(entry.path))
            else:
                stat = entry.stat()
                yield entry.path, stat.st_mtime_ns, stat.st_size


def _named(value: Any, pieces: Mapping[str, object], within: bool = False) -> Iterator[str]:
    """Pieces named in options: in a spec (`name:` and options, which may name further pieces), or by full
    name anywhere.
    """
    if isinstance(value, Mapping):
        within = within or value.get("name") in pieces
        if value.get("parser") == "auto":
            yield from catalogue("parser")
        yield from (f"health.{rule}" for rule in value.get("health") or ())
        for inner in value.values():
            yield from _named(inner, pieces, within)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _named(inner, pieces, within)
    elif isinstance(value, str) and value.startswith(GENERATED):
        testbed = value.removeprefix(GENERATED).partition("?")[0]
        if testbed in (catalogue("testbed").keys() | catalogue("family").keys()):
            yield testbed
    elif isinstance(value, str) and value in pieces and (within or "." in value):
        yield value


def _pieces() -> dict[str, Places]:
    """Places of the pieces of every slot by name. Pieces of two slots may have one name, which then stands
    for both. Health rules are keys in recipes, and have the prefix `health.` here.
    """
    found: dict[str, Places] = {}
    for slot in SLOTS:
        for name, piece in catalogue(slot).items():
            name = f"health.{name}" if slot == "health" else name
            found[name] = (*found.get(name, ()), (piece.module, piece.function))
    return found
