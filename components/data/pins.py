"""What the addresses of a recipe mean today: the content behind a `path:`, the commit behind a `hub:`.

A recipe that names a growing file or a moving branch is a new recipe once they have moved: its stages have other keys,
so the next night trains on the new data, and the run's own recipe says which it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.components.data.hub import commit
from ratchet.components.data.sources import digest, local
from ratchet.components.models.lora import base_of, is_adapter
from ratchet.components.recipes.schema import Recipe
from ratchet.components.storage.store import MANIFEST, write_atomic

log = logging.getLogger("ratchet.sources")
COMMIT = re.compile(r"@[0-9a-f]{40}(?:!|$)")


def pinned(recipe: Recipe, home: Path) -> Recipe:
    """The recipe with every unpinned source pinned, but for those that are not there: fetching them says what is wrong.

    A hub that cannot be asked stops nothing that was fetched before: then the commit of that branch fetched last into `home` is meant.
    """
    models = {}
    for name, source in recipe.models.items():
        address, sha256 = _pin(source.source, source.sha256, home, f"model_{name}")
        base, base_sha256 = _pin(base_address(address, source.base), source.base_sha256, home, f"model_{name}")
        models[name] = dataclasses.replace(source, source=address, sha256=sha256, base=base or None, base_sha256=base_sha256)
    data = [dataclasses.replace(one, source=address, sha256=sha256) for one in recipe.data.every_source
            for address, sha256 in [_pin(one.source, one.sha256, home, "raw")]]
    changed = {"sources": data} if recipe.data.sources else {"source": data[0].source, "sha256": data[0].sha256}
    return dataclasses.replace(recipe, models=models, data=dataclasses.replace(recipe.data, **changed))


def base_address(address: str, base: str | None) -> str:
    """The base model of a `path:` that is a LoRA directory, where the recipe names none; empty for a model that needs none."""
    place = Path(address.removeprefix("path:"))
    return base or (base_of(place) if address.startswith("path:") and is_adapter(place) else "")


def _pin(address: str, sha256: str | None, home: Path, stage: str) -> tuple[str, str | None]:
    scheme, _, rest = address.partition(":")
    if sha256 is None and scheme == "path" and Path(rest).exists():
        return address, digest(local(address), _Remembered(home / "digests.json"))
    if sha256 is None and scheme == "hub" and not rest.startswith(("/", ".")) and not COMMIT.search(rest):
        where, bang, file = rest.partition("!")
        repository = where.partition("@")[0]
        found, noted = commit(rest), home / "commits.json"
        known = _read(noted).get(where, [])
        if found and found not in known:
            _note(noted, where, [*known, found])
        if found is None and (found := _fetched(home / "store", stage, f"hub:{repository}@", known)):
            log.warning("hub:%s cannot be asked what is new; taking commit %s, which was fetched before", where, found[:12])
        if found:
            return f"hub:{repository}@{found}{bang}{file}", None
    return address, sha256


def _fetched(store: Path, stage: str, prefix: str, among: Sequence[str]) -> str | None:
    """The commit of what a stage fetched last from a repository, `among` those that its branch was seen to mean."""
    found = []
    for file in store.glob(f"{stage}-*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            meta = json.loads(file.read_text())["meta"]
            for source in [one["source"] for one in meta.get("sources", [meta])]:
                if source.startswith(prefix) and (made := source.removeprefix(prefix).partition("!")[0]) in among:
                    found.append((file.stat().st_mtime, made))
    return max(found)[1] if found else None


class _Remembered:
    """SHA-256 of large files, which need not be read again while their size, time and place on the disk are the same."""

    LARGE = 64 << 20

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, path: Path) -> str:
        state = path.stat()
        if state.st_size < self.LARGE:
            return digest(path)
        name, mark = os.path.realpath(path), [state.st_size, state.st_mtime_ns, state.st_ino]
        known = _read(self.file).get(name, [None])
        if known[:-1] != mark:
            known = [*mark, digest(path)]
            _note(self.file, name, known)
        return known[-1]


def _read(file: Path) -> dict[str, list[Any]]:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(file.read_text())
    return {}


def _note(file: Path, name: str, value: list[Any]) -> None:
    """Beside what else is noted there; not being able to costs time, later."""
    with contextlib.suppress(OSError):
        write_atomic(file, json.dumps({**_read(file), name: value}))
