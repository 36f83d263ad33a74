"""Reproduction of an artifact in a fresh home, compared bit for bit per stage.

Raw data and models are located by digest: in a store, a DVC folder, or a version in git's history whose files
are in DVC's cache or remote; else they are downloaded from the recipe's address. All other stages are rerun
in plan order up to the first that differs.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.components.errors import ContractError, RecipeError, StoreError
from ratchet.components.recipes.plan import Stage
from ratchet.components.storage.store import MANIFEST, Store, content, file_digest, read_manifest
from ratchet.components.types import Artifact
from ratchet.tasks.data.versioning import fetch_version, versions
from ratchet.tasks.machine.provenance import machine, packages, revision
from ratchet.tasks.pipeline import Pipeline

LOCATED = ("fetch_data", "fetch_model", "make_tiny", "make_tiny_vision", "make_new")


@dataclass(frozen=True)
class Outcome:
    """Result of one stage. `state`: brought (copied by digest), identical or differs. `files`: differing
    files, if both sides are available. `changed`: the stage's options or code differ from the recorded ones.
    """

    stage: str
    kind: str
    state: str
    expected: str
    found: str
    files: tuple[str, ...] = ()
    changed: bool = False


def reproduce(made: Mapping[str, Any], into: Path, *, home: Path) -> Iterator[Outcome]:
    """Replay a lineage in the empty directory `into`, one result a stage, to the first that differs.

    `home`: where input files may still be. `RecipeError` if the lineage has no recipe, `ContractError` if the
    current code has another plan.
    """
    if not made["resolved"]:
        raise RecipeError(f"the lineage of {made['product']} has no recipe: no run in this home links to it")
    if into.exists() and any(into.iterdir()):
        raise RecipeError(f"{into} is not empty; a reproduction needs a fresh directory")
    pipeline = Pipeline.again(made["resolved"], home=into, run=made["run"] or "again")
    if unknown := [name for name in made["stages"] if name not in pipeline.stages]:
        raise ContractError(
            f"the current code has no stage {', '.join(unknown)}; check out revision "
            f"{made['revision'] or '(unknown)'} and try again"
        )
    pipeline.begin()
    for name in (n for n in pipeline.stages if n in made["stages"]):
        recorded, stage = made["stages"][name], pipeline.stages[name]
        if recorded.get("missing"):
            raise StoreError(
                f"the digest of {name} is unknown since its directory was removed; "
                "use a registered version, which includes its whole lineage"
            )
        brought = bring(pipeline, stage, recorded, home) if stage.does in LOCATED else None
        files = (read_manifest((brought or pipeline.make(name)).path) or {})["files"]
        found = content(files)
        state = "differs" if found != recorded["content"] else "brought" if brought else "identical"
        there, odd = Store(home).path(name, recorded["key"]), state == "differs"
        names = _files(there, recorded["content"], files) if odd else ()
        changed = stage.key != recorded["key"]
        yield Outcome(name, recorded["kind"], state, recorded["content"], found, names, changed)
        if odd:
            pipeline.end("failed")
            return
    pipeline.end("finished")


def bring(pipeline: Pipeline, stage: Stage, recorded: Mapping[str, Any], home: Path) -> Artifact | None:
    """Copy the recorded files, verified, from the nearest place that has them: the store of `home`, data/, or
    a version in git's history, which DVC downloads. None if none has.
    """
    data = f"data/{stage.name}"

    def places(scratch: Path) -> Iterator[Path]:
        yield from (Store(home).path(stage.name, recorded["key"]), Path(data))
        for commit in versions(Path(), data):
            if fetch_version(Path(), data, commit, scratch / commit):
                yield scratch / commit
                shutil.rmtree(scratch / commit)

    with tempfile.TemporaryDirectory(prefix=".brought-", dir=pipeline.store.home) as scratch:
        place = next((p for p in places(Path(scratch)) if _digest(p) == recorded["content"]), None)
        if place is None:
            return None
        made_with = {word: recorded[word] for word in ("revision", "packages", "machine") if word in recorded}
        with pipeline.store.working(stage.name, stage.key) as work:
            shutil.copytree(place, work.product, dirs_exist_ok=True)
            (work.product / MANIFEST).unlink(missing_ok=True)
            return pipeline.store.publish(
                work, stage.name, stage.key, stage.kind, (), recorded["meta"], made_with
            )


def _digest(place: Path) -> str:
    """Content digest of a directory from its files, since data/ has no manifest; '' if unreadable."""
    files = [file for file in place.rglob("*") if file.is_file() and file != place / MANIFEST]
    try:
        return content({str(file.relative_to(place)): {"sha256": file_digest(file)} for file in files})
    except OSError:
        return ""


def surroundings(made: Mapping[str, Any]) -> list[str]:
    """Differences of code, packages and machine from those of the recorded artifact; bit-exact results are
    expected only if empty.
    """
    own, here = made["stages"][made["product"]], packages()
    found = []
    if made["revision"] != revision():
        found.append(f"code: {made['revision'] or 'unknown'} then, {revision() or 'unknown'} now")
    found += [
        f"{name}: {version} then, {here.get(name, 'not installed')} now"
        for name, version in made["packages"].items()
        if here.get(name) != version
    ]
    if own.get("machine", machine()) != machine():
        found.append(f"machine: {own['machine']} then, {machine()} now")
    return found


def _files(recorded: Path, expected: str, files: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of differing files, if the recorded artifact is still available."""
    manifest = read_manifest(recorded)
    if manifest is None or content(manifest["files"]) != expected:
        return ()
    before, lost = manifest["files"], {"sha256": ""}
    return tuple(  # `content` leaves out files with timestamps
        name
        for name in {**before, **files}
        if content({name: before.get(name, lost)}) != content({name: files.get(name, lost)})
    )
