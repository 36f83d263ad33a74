"""Registered versions of a model: look-up by name, number and alias, their events and lineage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import RecipeError, StoreError
from ratchet.tasks.registry.logged_models import LINEAGE
from ratchet.tasks.tracking.server import service, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

HISTORY = "history."  # prefix of tags, one per event


@dataclass(frozen=True)
class Version:
    """A registered version. `tags`: lineage, metrics, verdict; `path`: original directory."""

    name: str
    version: str
    model_id: str
    external: bool
    aliases: tuple[str, ...]
    path: str
    tags: Mapping[str, str] = field(default_factory=dict)


def events(version: Version) -> list[dict[str, Any]]:
    """Recorded events of a version, oldest first."""
    return [json.loads(version.tags[key]) for key in sorted(version.tags) if key.startswith(HISTORY)]


def version_with_alias(versions: Sequence[Version], alias: str = "champion") -> Version | None:
    """The version with an alias."""
    return next((v for v in versions if alias in v.aliases), None)


def version_by_number(
    versions: Sequence[Version], name: str, number: str, *, with_files: bool = False
) -> Version:
    """The version with that number. `StoreError` if there is none, or none `with_files`."""
    version = next((v for v in versions if v.version == number), None)
    if version is None:
        known = ", ".join(v.version for v in versions) or "none"
        raise StoreError(f"model {name!r} has no version {number}; it has {known}")
    if with_files and version.external:
        raise StoreError(f"{name} version {number} has no files in the registry; they are in {version.path}")
    return version


def find_version(name: str, number: str = "", alias: str = "", *, home: Path) -> Version | None:
    """The version with that number, or else alias; without either, the champion or else the newest. None if
    no such model is registered, `RecipeError` for an unknown number or alias.
    """
    versions = history(name, home=home) if name in models(home=home) else []  # `models` creates no database
    if not versions:
        return None
    if not (number or alias):
        return version_with_alias(versions) or versions[-1]
    for version in versions:
        if version.version == number if number else alias in version.aliases:
            return version
    aliases = ", ".join(f"@{a} (version {v.version})" for v in versions for a in v.aliases) or "none"
    raise RecipeError(
        f"{name!r} has no {f'version {number}' if number else f'alias {alias!r}'}; its versions: "
        f"{', '.join(v.version for v in versions)}; its aliases: {aliases}"
    )


def fallback(model: str, version: Version | None) -> str:
    """Which version was taken for a registered name without number or alias, if it has no champion; else
    empty.
    """
    if version is None or model != version.name or "champion" in version.aliases:
        return ""
    return f"{model} has no champion: this is version {version.version}, the newest"


def champion(name: str, *, home: Path) -> Version | None:
    """The version with the alias `champion`, or None."""
    return version_with_alias(history(name, home=home))


def history(name: str, *, home: Path) -> list[Version]:
    """All versions, oldest first; empty for an unknown model."""
    with service(f"reading {name}", home) as mlflow:
        return versions_of(mlflow, name)


def models(*, home: Path) -> list[str]:
    """Names of all registered models; empty, without a query, if nothing was tracked in `home`."""
    file = tracking_uri(home).removeprefix("sqlite:///")
    if file != tracking_uri(home) and not Path(file).exists():
        return []
    with service("listing models", home) as mlflow:
        return [model.name for model in _all(mlflow.search_registered_models)]


def saved_lineage(version: Version, *, home: Path) -> dict[str, Any] | None:
    """The lineage stored with a version; None for old versions without it."""
    with service(f"reading the lineage of {version.name} version {version.version}", home) as mlflow:
        if LINEAGE not in [a.path for a in mlflow.list_logged_model_artifacts(version.model_id)]:
            return None
        from mlflow.artifacts import load_dict

        return load_dict(f"{mlflow.get_logged_model(version.model_id).artifact_location}/{LINEAGE}")


def versions_of(mlflow: MlflowClient, name: str) -> list[Version]:
    """All versions, oldest first; empty for an unknown model."""
    model = mlflow.search_registered_models(f"name = '{name}'")
    aliases = model[0].aliases if model else {}  # alias -> version
    found = (
        Version(
            name,
            str(v.version),
            v.model_id or str(v.source).removeprefix("models:/"),
            v.tags.get("external") == "true",
            tuple(alias for alias, at in aliases.items() if str(at) == str(v.version)),
            v.tags.get("path", ""),
            dict(v.tags),
        )
        for v in _all(mlflow.search_model_versions, f"name = '{name}'")
    )
    return sorted(found, key=lambda v: int(v.version))


def _all(search: Callable[..., Any], *what: str) -> Iterator[Any]:
    """All results of a paged MLflow search."""
    token = None
    while token != "":
        page = search(*what, max_results=200, page_token=token)
        yield from page
        token = page.token or ""
