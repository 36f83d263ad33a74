"""MLflow model registry: versions with lineage, and the aliases `candidate` and `champion`.

A version refers to an MLflow LoggedModel (`tasks/registry/logged_models.py`). A candidate's files are copied
into it, a Hugging Face directory; an intermediate checkpoint is *external*: lineage and metrics only, its
files stay in the store. Written for an `mlflow server`, which rejects several calls that sqlite allows.
All functions raise `ServiceError` if the server is unreachable; all are safe to call again.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import ServiceError, StoreError
from ratchet.components.storage.store import file_digest
from ratchet.tasks.machine.provenance import packages
from ratchet.tasks.registry.logged_models import MARK, link_to_run, logged_model, replace_lineage
from ratchet.tasks.registry.versions import (
    HISTORY,
    Version,
    history,
    saved_lineage,
    version_by_number,
    version_with_alias,
    versions_of,
)
from ratchet.tasks.tracking.server import allowed, cut, flatten, service, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

FILE_ONLY = ("resolved", "stages", "packages", "results")  # parts of the lineage that are no tags
EVALUATION = ("metric.", "lineage.")  # tags that another evaluation replaces
ROLLED_BACK = "rolled_back"  # tag with the reason of a rollback, which blocks automatic promotion


def register(
    model_dir: Path,
    name: str,
    *,
    lineage: Mapping[str, Any],
    metrics: Mapping[str, float] | None = None,
    parents: Mapping[str, str] | None = None,
    run_id: str | None = None,
    external: bool = False,
    home: Path,
) -> str:
    """Register the directory as a version of model `name`; returns the existing version if weights and data
    digests are equal, with the lineage and metrics of the new evaluation if it was evaluated again.

    `lineage` becomes tags (`lineage.data.<name>`, `lineage.recipe`, ...) and `lineage.json`. Identity: its
    `data` mapping and the digest of the files. `parents`: versions it was trained from, stage ->
    `name:version`, as tags `parent.<stage>`. With `external` false, an existing external version is
    not reused. `StoreError` if `model_dir` has no files.
    """
    metrics, weights = metrics or {}, directory_digest(model_dir)
    data = {k: str(v) for k, v in lineage.get("data", {}).items()}
    mark = hashlib.sha256(json.dumps([weights, data], sort_keys=True).encode()).hexdigest()[:40]
    origin = flatten({k: v for k, v in lineage.items() if k not in FILE_ONLY})
    tags = {
        MARK: mark,
        "weights": weights,
        "path": str(model_dir.resolve()),
        "external": str(external).lower(),
        **{f"lineage.{k}": v for k, v in origin.items()},
        **{f"metric.{k}": repr(v) for k, v in metrics.items()},
        **{f"parent.{stage}": version for stage, version in (parents or {}).items()},
        **{f"package.{k}": v for k, v in packages().items()},
    }
    tags = {allowed(k): cut(v, 5000) for k, v in tags.items()}
    with service(f"registering {name}", home) as mlflow:
        _ensure(mlflow, name)
        same = [v for v in versions_of(mlflow, name) if v.tags.get(MARK) == mark]
        known = next((v for v in same if external or not v.external), None)
        if known is not None:
            number, model_id = known.version, known.model_id
        else:
            model_id = logged_model(mlflow, model_dir, name, mark, lineage, run_id, external, home)
            with _as_default(tracking_uri(home)):
                made = mlflow.create_model_version(
                    name, f"models:/{model_id}", run_id=run_id, tags=tags, model_id=model_id
                )
            number = str(made.version)
        if run_id:  # possibly another run with the same result, or this one, killed earlier
            link_to_run(mlflow, run_id, model_id, metrics)
        if known is not None and lineage.get("results"):
            _evaluated_again(mlflow, known, lineage, tags, home)
        return number


def _evaluated_again(
    mlflow: Any, known: Version, lineage: Mapping[str, Any], tags: Mapping[str, str], home: Path
) -> None:
    """Replace lineage and metrics of a version if `lineage` has another evaluation; the file last, since it
    marks completion.
    """
    before: dict[str, Any] = {}
    with contextlib.suppress(ServiceError):  # a file that was being replaced; no server fails below
        before = saved_lineage(known, home=home) or {}
    old, new = (json.dumps(one.get("results"), sort_keys=True) for one in (before, lineage))
    if old == new:
        return
    for tag in known.tags.keys() - tags.keys():
        if tag.startswith(EVALUATION):
            mlflow.delete_model_version_tag(known.name, known.version, tag)
    for tag, value in tags.items():
        if tag.startswith(EVALUATION) and known.tags.get(tag) != value:
            mlflow.set_model_version_tag(known.name, known.version, tag, value)
    replace_lineage(mlflow, known.model_id, lineage)


def promote(name: str, version: str, verdict: Mapping[str, Any], *, home: Path) -> bool:
    """Set `candidate`, and `champion` if the verdict allows, and record who, when and why. Returns whether it
    was allowed to be champion.

    `verdict`: {"passed": gates, "reasons": [str, ...], "champion": whether it may become champion
    (default: `passed`)}. A champion keeps its alias if it fails later; a rolled-back version is not promoted
    automatically. `StoreError` for a version without files.
    """
    why = "; ".join(verdict.get("reasons", ())) or "no reason given"
    with service(f"promoting {name} version {version}", home) as mlflow:
        known = version_by_number(versions_of(mlflow, name), name, version, with_files=True)
        becomes_champion = bool(verdict.get("champion", verdict["passed"])) and ROLLED_BACK not in known.tags
        # tags first: an alias must not point at an unexplained version
        gates = "passed" if verdict["passed"] else "refused"
        mlflow.set_model_version_tag(name, version, "verdict", gates)
        mlflow.set_model_version_tag(name, version, "verdict.why", cut(why, 5000))
        move_alias(mlflow, known, "candidate", action="proposed", why=why)
        if becomes_champion:
            move_alias(mlflow, known, "champion", action="promoted", why=why)
        return becomes_champion


def move_alias(
    mlflow: MlflowClient, version: Version, alias: str, *, action: str, why: str, **more: Any
) -> None:
    """Move an alias to the version. Since aliases have no history, the event is first written as a tag
    `history.<time>` of the new version and, for `champion`, of the previous one. No-op if the alias is
    already there.
    """
    before = version_with_alias(versions_of(mlflow, version.name), alias)
    if before is not None and before.version == version.version:
        return
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    event = {"action": action, "alias": alias, "at": when, "by": _user(), "why": cut(why, 4000), **more}
    event_tags = {version.version: event | {"replaced": before and before.version}}
    if before is not None and alias == "champion":
        event_tags[before.version] = event | {"action": "replaced", "replaced_by": version.version}
    for number, what in event_tags.items():
        mlflow.set_model_version_tag(version.name, number, f"{HISTORY}{when}", json.dumps(what))
    mlflow.set_registered_model_alias(version.name, alias, version.version)


def ensure_files(name: str, number: str, *, home: Path) -> str:
    """Number of the version with the same weights that has files: itself, or one created from the store's
    copy. `StoreError` if that copy is missing or changed.
    """
    version = version_by_number(history(name, home=home), name, number)
    if not version.external:
        return number
    path = Path(version.path)
    if not path.is_dir() or directory_digest(path) != version.tags["weights"]:
        raise StoreError(
            f"{name} version {number} has no files in the registry, and {path} "
            f"{'has changed' if path.is_dir() else 'is gone'}; "
            f"make it again with `ratchet reproduce {name}:{number} --into FOLDER`"
        )
    lineage, tags = saved_lineage(version, home=home) or {}, version.tags
    metrics = {k.removeprefix("metric."): float(v) for k, v in tags.items() if k.startswith("metric.")}
    parents = {k.removeprefix("parent."): v for k, v in tags.items() if k.startswith("parent.")}
    return register(path, name, lineage=lineage, parents=parents, metrics=metrics, home=home)


def directory_digest(path: Path) -> str:
    """SHA-256 over names and contents of all files except the store's manifest and metrics."""
    left_out = ("manifest.json", "metrics.jsonl")
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name not in left_out)
    if not files:
        raise StoreError(
            f"{path} is not a model directory: it holds no files; expected config.json and weights"
        )
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path).as_posix()} {file_digest(file)}\n".encode())
    return digest.hexdigest()


def _user() -> str:
    """Name of the user, or the user id in a container that does not know the name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


@contextlib.contextmanager
def _as_default(uri: str) -> Iterator[None]:
    """Set MLFLOW_TRACKING_URI temporarily: MLflow's sqlite store uses it instead of the client's URI.
    A value set by the user needs no restoring: `tracking_uri` returned it.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    os.environ["MLFLOW_TRACKING_URI"] = uri
    try:
        yield
    finally:
        if given is None:
            os.environ.pop("MLFLOW_TRACKING_URI", None)


def _ensure(mlflow: Any, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        mlflow.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
