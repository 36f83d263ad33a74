"""`registry:` sources of a recipe's models: resolution to a version, and access to its files.

    registry:NAME            the champion
    registry:NAME@ALIAS      the version with that alias
    registry:NAME/3          that version

Aliases are resolved when a run starts, and the run's recipe records the version and the digest of its
weights. An unfinished run continues with the same version even if the alias has moved.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import yaml

from ratchet.components.errors import RecipeError, SourceError, StoreError, nearest
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.schema import Recipe, Source
from ratchet.components.stages.fetch import REGISTRY
from ratchet.components.storage.store import MANIFEST, digest
from ratchet.tasks.registry.logged_models import LINEAGE, WRITTEN
from ratchet.tasks.registry.registry import directory_digest
from ratchet.tasks.registry.versions import Version, find_version, models
from ratchet.tasks.tracking.outcome import run_files
from ratchet.tasks.tracking.server import service, tracking_uri

log = logging.getLogger("ratchet.sources")
ADDRESS = re.compile(r"registry:([^/@:]+)(?:/(\d+)|@([^/@:]+))?")


def resolved(recipe: Recipe, profile: Profile, home: Path) -> tuple[Recipe, dict[str, Any]]:
    """The recipe with `registry:` sources resolved, and the record needed to resume. `SourceError` for an
    unknown name, version or alias. The registry is not queried without such sources, or to resume a run.
    """
    sources = {name: source for name, source in recipe.models.items() if source.source.startswith(REGISTRY)}
    if not sources:
        return recipe, {}
    request = digest([plain(recipe), profile.name])
    found = _begun_with(request, recipe, home) or {
        name: _pin(name, source, home) for name, source in sources.items()
    }
    pinned = {
        name: dataclasses.replace(sources[name], source=source, sha256=weights)
        for name, (source, weights) in found.items()
    }
    record = {"asked": request, "versions": found}
    return dataclasses.replace(recipe, models={**recipe.models, **pinned}), record


def bring(version: Version, folder: Path, home: Path, weights: str | None = None) -> None:
    """Link the files of a version to `folder`: from the store if unchanged, else from the registry, where
    they may be downloaded next to `folder`. `weights`: their digest, by default that of the version.
    `StoreError` if neither has them.
    """
    weights = weights or version.tags.get("weights")
    if version.path and Path(version.path).is_dir() and _link(Path(version.path), folder, weights):
        return
    location = _registered_files(version, home, folder.with_name("download"))
    if not _link(location, folder, weights):
        raise StoreError(
            f"registry:{version.name}/{version.version}: expected weights with digest {weights}, got other "
            f"weights from {location}; the registry's copy is damaged"
        )


def _registered_files(version: Version, home: Path, folder: Path) -> Path:
    """Directory with a version's files: the registry's own if it is on this machine, else downloaded into
    `folder`. `StoreError` if the registry has none.
    """
    if version.external:
        raise StoreError(
            f"registry:{version.name}/{version.version}: this version has no bytes in the registry, and "
            f"{version.path} is gone or changed; make it again with `ratchet reproduce "
            f"{version.name}:{version.version} --into FOLDER`, or name a version with bytes"
        )
    with service(f"reading {version.name} version {version.version}", home) as mlflow:
        location = mlflow.get_model_version_download_uri(version.name, version.version)
        if location.startswith("models:/"):
            location = mlflow.get_logged_model(version.model_id).artifact_location
        parts = urlparse(location)
        if parts.scheme in ("", "file"):
            return Path(unquote(parts.path))
        from mlflow.artifacts import download_artifacts

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return Path(download_artifacts(location, dst_path=str(folder), tracking_uri=tracking_uri(home)))


def version_of(source: str, where: str, home: Path) -> Version:
    """The version that a `registry:` address currently means. `SourceError` if there is none."""
    match = ADDRESS.fullmatch(source)
    if not match:
        raise SourceError(
            f"{where}: {source!r} is not the address of a registered model; expected registry:NAME, "
            "registry:NAME/VERSION or registry:NAME@ALIAS"
        )
    name, number, alias = match.groups("")
    try:
        version = find_version(name, number, alias or "champion", home=home)
    except RecipeError as error:
        raise SourceError(f"{where}: {source}: {error}") from None
    if version is None:
        raise SourceError(
            f"{where}: {source}: no model {name!r} is registered at {tracking_uri(home)}"
            f"{nearest(name, models(home=home))}; a run with a `register` section registers one at its end"
        )
    return version


def _pin(name: str, source: Source, home: Path) -> tuple[str, str | None]:
    version = version_of(source.source, f"models.{name}.source", home)
    weights = version.tags.get("weights")
    if source.sha256 not in (None, weights):
        raise SourceError(
            f"models.{name}.sha256: expected weights with digest {source.sha256}, got {weights} of "
            f"{version.name} version {version.version}"
        )
    return f"{REGISTRY}{version.name}/{version.version}", weights


def _begun_with(request: str, recipe: Recipe, home: Path) -> Mapping[str, tuple[str, str | None]]:
    """Versions used by the newest unfinished run of the same recipe."""
    for file in reversed(run_files(home)):
        state = json.loads(file.read_text())
        registered = recipe.register is None or ("registered" in state and not state.get("postponed"))
        finished = state.get("state") == "finished" and registered
        if state.get("registry", {}).get("asked") == request and not finished:
            versions = state["registry"]["versions"]
            sources = ", ".join(source for source, _ in versions.values())
            log.warning(
                "run %s is not finished and continues with the same models: %s", state["run"], sources
            )
            return versions
    return {}


def _link(place: Path, folder: Path, weights: str | None) -> bool:
    """Link the files of a model directory into `folder`; returns whether the digest is `weights`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file, name in _model_files(place):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(file.resolve())
    return weights is None or directory_digest(folder) == weights


def _model_files(place: Path) -> list[tuple[Path, str]]:
    """(file, its path in the model) of a plain directory, or of one written by MLflow's transformers
    flavour.
    """
    folders, left_out = [place], [MANIFEST, "metrics.jsonl", LINEAGE]
    if (place / "MLmodel").is_file():
        flavours = yaml.safe_load((place / "MLmodel").read_text()).get("flavors") or {}
        flavour = flavours.get("transformers", {})
        if (binary := flavour.get("model_binary", ".")) == ".":
            left_out += WRITTEN
        else:
            folders = [
                place / binary,
                *(place / "components" / part for part in flavour.get("components", ())),
            ]
            left_out = []
    return [
        (file, str(name))
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file() and (name := file.relative_to(folder)).parts[0] not in left_out
    ]
