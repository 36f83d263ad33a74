"""Pinning of recipe sources: resolves `path:` to a content digest and `hub:` to a commit.

When a file or branch changes, the pinned recipe changes, and so do the store keys of its stages: a scheduled
run trains on the new data, and the run's recipe records the version.
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

from ratchet.components.data.digests import digest
from ratchet.components.data.hub import commit
from ratchet.components.data.sources import local
from ratchet.components.models.lora import base_of, is_adapter
from ratchet.components.recipes.schema import Recipe
from ratchet.components.storage.store import MANIFEST, write_atomic

log = logging.getLogger("ratchet.sources")
COMMIT = re.compile(r"@[0-9a-f]{40}(?:!|$)")


def pinned(recipe: Recipe, home: Path) -> Recipe:
    """The recipe with all sources pinned. Missing sources stay unpinned and fail at the fetch stage.

    If the Hub is unreachable, the last commit of the branch that was downloaded to `home` is used.
    """
    models = {}
    for name, source in recipe.models.items():
        address, sha256 = _pin(source.source, source.sha256, home, f"model_{name}")
        base, base_sha256 = _pin(
            base_address(address, source.base), source.base_sha256, home, f"model_{name}"
        )
        models[name] = dataclasses.replace(
            source, source=address, sha256=sha256, base=base or None, base_sha256=base_sha256
        )
    data = [
        dataclasses.replace(one, source=address, sha256=sha256)
        for one in recipe.data.every_source
        for address, sha256 in [_pin(one.source, one.sha256, home, "raw")]
    ]
    changed = (
        {"sources": data} if recipe.data.sources else {"source": data[0].source, "sha256": data[0].sha256}
    )
    return dataclasses.replace(recipe, models=models, data=dataclasses.replace(recipe.data, **changed))


def base_address(address: str, base: str | None) -> str:
    """Base model address of a `path:` LoRA directory if the recipe sets none; empty if no base model is
    needed.
    """
    place = Path(address.removeprefix("path:"))
    return base or (base_of(place) if address.startswith("path:") and is_adapter(place) else "")


def _pin(address: str, sha256: str | None, home: Path, stage: str) -> tuple[str, str | None]:
    scheme, _, rest = address.partition(":")
    if sha256 is None and scheme == "path" and Path(rest).exists():
        return address, digest(local(address), _CachedDigests(home / "digests.json"))
    if sha256 is None and scheme == "hub" and not rest.startswith(("/", ".")) and not COMMIT.search(rest):
        where, bang, file = rest.partition("!")
        repository = where.partition("@")[0]
        found, noted = commit(rest), home / "commits.json"
        known = _read(noted).get(where, [])
        if found and found not in known:
            _note(noted, where, [*known, found])
        if found is None and (found := _fetched(home / "store", stage, f"hub:{repository}@", known)):
            log.warning(
                "hub:%s: the Hub is unreachable; using commit %s, downloaded earlier", where, found[:12]
            )
        if found:
            return f"hub:{repository}@{found}{bang}{file}", None
    return address, sha256


def _fetched(store: Path, stage: str, prefix: str, among: Sequence[str]) -> str | None:
    """The most recently downloaded commit of a repository, among the commits in `among` that its branch has
    pointed to.
    """
    found = []
    for file in store.glob(f"{stage}-*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            meta = json.loads(file.read_text())["meta"]
            for source in [one["source"] for one in meta.get("sources", [meta])]:
                if (
                    source.startswith(prefix)
                    and (made := source.removeprefix(prefix).partition("!")[0]) in among
                ):
                    found.append((file.stat().st_mtime, made))
    return max(found)[1] if found else None


class _CachedDigests:
    """SHA-256 of large files, cached by size, mtime and inode."""

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
    """Add an entry to a JSON file; failures are ignored, since it is only a cache."""
    with contextlib.suppress(OSError):
        write_atomic(file, json.dumps({**_read(file), name: value}))
