"""Lineage of an artifact: all ancestors with digests, inputs, code revisions and package versions, and the
recipe.

A lineage is a JSON-serialisable mapping, saved with a run (`lineage/<stage>.json`) and in a registered
version:
    product    name of the stage that made the artifact
    recipe, run, resolved           recipe name, run name, and the resolved recipe as text (empty if no run is
                                    known)
    revision, packages              of the artifact itself; each stage has its own
    stages     name -> {key, kind, content, inputs: {role: name}, made, meta, revision, packages, machine};
               ancestors first. `content`: digest of the output; an ancestor no longer in the store has
               `missing: true` instead
    data, weights                   name -> content, of the stages of these kinds
    results    the evaluation (`ratchet.tasks.tracking.results`), if the run evaluated this artifact
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet.components.errors import StoreError
from ratchet.components.storage.store import MANIFEST, content, read_manifest, write_atomic
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.registry.versions import Version, saved_lineage
from ratchet.tasks.registry.weights import Location, locate
from ratchet.tasks.tracking.results import read_evaluation


def write_lineage(pipeline: Pipeline, name: str) -> dict[str, Any]:
    """The lineage of a stage's artifact in a run, also written to the run."""
    made = of_product(pipeline.artifact(name).path, pipeline.run.path)
    write_atomic(pipeline.run.path / "lineage" / f"{name}.json", json.dumps(made, indent=1))
    return made


def of_product(path: Path, run: Path | None = None) -> dict[str, Any]:
    """The lineage of a finished directory in the store, from manifests only. `run`: a run that links to it.
    `StoreError` if it is not a finished artifact.
    """
    path = path.resolve()
    manifest = read_manifest(path)
    if manifest is None:
        raise StoreError(
            f"{path} is not a finished artifact: it has no readable manifest.json; expected a directory of "
            "the store or a link under runs/<run>/stages/"
        )
    stages: dict[str, dict[str, Any]] = {}
    _walk(path, stages)
    run = run or next(runs_with(path), None)
    state = json.loads((run / "run.json").read_text()) if run else {}
    own = {**state, **manifest["made_with"]}
    return {
        "product": manifest["stage"],
        "recipe": state.get("recipe", ""),
        "run": run.name if run else "",
        "revision": own.get("revision", ""),
        "packages": own.get("packages", {}),
        "resolved": (run / "recipe.yaml").read_text() if run else "",
        "stages": stages,
        "data": {n: s["content"] for n, s in stages.items() if s.get("kind") in ("data", "groups")},
        "weights": {n: s["content"] for n, s in stages.items() if s.get("kind") == "weights"},
        "results": _results(run, manifest["key"]) if run else {},
    }


def _walk(path: Path, seen: dict[str, dict[str, Any]]) -> None:
    manifest = read_manifest(path)
    assert manifest is not None
    made_with = manifest["made_with"]
    inputs: dict[str, str] = {}
    roles = made_with.get("inputs") or {str(i): "" for i in range(len(manifest["parents"]))}
    for (role, known), key in zip(roles.items(), manifest["parents"], strict=True):
        parent = next((p for p in path.parent.glob(f"*-{key[:16]}") if (p / MANIFEST).exists()), None)
        inputs[role] = parent.name.rpartition("-")[0] if parent else known or key[:16]
        if inputs[role] in seen:
            continue
        if parent is None:
            seen[inputs[role]] = {"key": key, "missing": True, "inputs": {}}
        else:
            _walk(parent, seen)
    seen[manifest["stage"]] = {
        "key": manifest["key"],
        "kind": manifest["kind"],
        "content": content(manifest["files"]),
        "inputs": inputs,
        "made": manifest["made"],
        "meta": manifest["meta"],
        **{k: made_with[k] for k in ("revision", "packages", "machine") if k in made_with},
    }


def runs_with(path: Path) -> Iterator[Path]:
    """Runs that link to an artifact, newest first."""
    runs = path.parent.parent / "runs"
    for state in sorted(runs.glob("*/run.json"), key=lambda p: p.stat().st_mtime, reverse=True):
        if any(link.resolve() == path for link in (state.parent / "stages").glob("[!.]*")):
            yield state.parent


def _results(run: Path, key: str) -> dict[str, Any]:
    """The run's evaluation, if it evaluated this artifact; without scores by prompt if they are of another
    model, such as a mean of weights.
    """
    found = read_evaluation(run)
    if found.pop("policy", None) != key:
        return {}
    return found if found.pop("answered_by") == key else {**found, "per_prompt": {}}


def resolve(model: str, home: Path) -> tuple[dict[str, Any], Version | None]:
    """The lineage of a run's final model, a stage's output or a registered version, and the version.

    `RecipeError` if unknown (`weights.locate`), `StoreError` if its lineage is.
    """
    found = list(locate(model, home).values())[-1]
    return lineage_of(found, home), found.version


def lineage_of(found: Location, home: Path) -> dict[str, Any]:
    """The lineage of a stage's output or a registered version. `StoreError` if it is unknown."""
    version = found.version
    if version is None:
        return of_product(found.path, found.run)
    made = saved_lineage(version, home=home)
    if made is None and (found.path / MANIFEST).exists():
        made = of_product(found.path)
    if made is None:
        raise StoreError(
            f"{version.name} version {version.version} has no lineage, and its original directory "
            f"{version.path} is not on this machine; use the machine of the run"
        )
    return made
