"""Data versioning with DVC: `publish` copies data sets to data/, `commit` records their versions.

`dvc.yaml` defines the stages; `dvc repro` and the flow produce the same `dvc.lock`. Outside a git checkout
with `.dvc` (a container, an unpacked archive), `commit` is skipped with a log line. Only DVC's command line
is used; its Python API is not stable.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ratchet.components.errors import ServiceError, StoreError
from ratchet.components.storage.store import DATED, MANIFEST

log = logging.getLogger("ratchet.versioning")
UNVERSIONED = (MANIFEST, *DATED)  # files with timestamps, durations and code versions
BUSY = ("is busy", "Unable to acquire lock", "waiting for a lock")


def publish(artifact: Path, target: Path) -> bool:
    """Make `target` (a file or directory) equal to `artifact`; returns False if it already was.

    Files in `UNVERSIONED` are omitted, so that equal data has equal versions. Files are hard-linked if
    possible, else copied, to a temporary name and then renamed; a killed exchange is repeated by the next
    call. Existing files in `target` are never written to, only unlinked, since they may be links into DVC's
    cache. Raises `StoreError`.
    """
    if not artifact.exists():
        raise StoreError(
            f"cannot publish {artifact} to {target}: it does not exist; run the stage that makes it first"
        )
    if target.exists() and _equal(artifact, target):
        return False
    new, old = (target.with_name(f".{target.name}.new-{word}") for word in (os.getpid(), "old"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for leftover in target.parent.glob(f".{target.name}.new-*"):  # left by a killed process
            _remove(leftover)
        if artifact.is_dir():
            shutil.copytree(
                artifact,
                new,
                copy_function=_link_or_copy,
                ignore=lambda folder, _: UNVERSIONED if Path(folder) == artifact else (),
            )
        else:
            _link_or_copy(artifact, new)
        # a file replaces a file in one step
        if target.is_dir() or (new.is_dir() and os.path.lexists(target)):
            target.rename(old)
        new.replace(target)
    except OSError as error:
        if old.exists() and not target.exists():
            old.rename(target)
        raise StoreError(
            f"cannot publish {artifact} to {target}: {error}; free space or fix permissions, then run again"
        ) from error
    finally:
        _remove(new)
        _remove(old)
    return True


def dvc_md5(path: Path) -> str:
    """DVC's md5 of a file or directory (`.dir`), as `publish` writes it and dvc.lock names it."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest()
    entries = [{"md5": dvc_md5(path / name), "relpath": name} for name in sorted(_files(path, UNVERSIONED))]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode()).hexdigest() + ".dir"


def commit(workspace: Path) -> dict[str, str]:
    """`dvc commit --force` of the stages whose outputs all exist; output path -> md5 as in dvc.lock.

    Afterwards `dvc status` is clean and `dvc repro` has nothing to do. Skipped outside a DVC workspace. Waits
    for a busy DVC lock, then raises `ServiceError`.
    """
    if not _is_dvc_workspace(workspace, "data versions are not recorded"):
        return {}
    stages = read_stages(workspace).items()
    if ready := [n for n, stage in stages if all((workspace / path).exists() for path in outputs(stage))]:
        dvc(workspace, "commit", "--force", "--quiet", *ready)
    return read_dvc_lock(workspace)


def versions(workspace: Path, path: str) -> Iterator[str]:
    """Git commits at which dvc.lock has distinct versions of `path`, latest first."""
    seen = set()
    if not _is_dvc_workspace(workspace, f"no earlier version of {path} is looked for"):
        return
    for commit in _git(workspace, "log", "--format=%H", "--", "dvc.lock").split():
        version = _outs(_git(workspace, "show", f"{commit}:./dvc.lock")).get(path)
        if version and version not in seen:
            seen.add(version)
            yield commit


def fetch_version(workspace: Path, path: str, commit: str, target: Path) -> bool:
    """Fetch a file or directory as of a commit from DVC's cache or default remote; False, with a log line, if
    unavailable. If `target` is an existing directory, it is placed inside.
    """
    try:
        dvc(workspace, "get", ".", path, "--rev", commit, "--force", "--out", str(target))
    except ServiceError as error:
        log.info("%s as of %s is not available: %s", path, commit[:12], error)
        return False
    return True


def read_dvc_lock(workspace: Path) -> dict[str, str]:
    """Output path -> md5 from dvc.lock."""
    lock = workspace / "dvc.lock"
    return _outs(lock.read_text()) if lock.exists() else {}


def _outs(lock: str) -> dict[str, str]:
    import yaml

    stages = (yaml.safe_load(lock) or {}).get("stages", {})
    return {
        out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", []) if "md5" in out
    }


def _git(workspace: Path, *arguments: str) -> str:
    """Output of a git command; empty if it fails, e.g. without commits."""
    return subprocess.run(["git", "-C", workspace, *arguments], text=True, capture_output=True).stdout


def dvc(workspace: Path, *arguments: str, wait_seconds: float = 60.0) -> str:
    """Run a DVC command and return its output. While another command has locked the workspace, it is repeated
    for `wait_seconds`. `ServiceError` on failure.
    """
    command, end = [sys.executable, "-m", "dvc", *arguments], time.monotonic() + wait_seconds
    while (done := subprocess.run(command, cwd=workspace, text=True, capture_output=True)).returncode:
        message, why = (done.stderr or done.stdout).strip(), ""
        if any(word in message for word in BUSY):
            if time.monotonic() < end:
                time.sleep(1)
                continue
            why = (
                f"another DVC command has locked {workspace} for {wait_seconds:g} s; wait for it, or, if no "
                "such process exists, remove .dvc/tmp/rwlock. DVC reported: "
            )
        raise ServiceError(
            f"`dvc {' '.join(arguments)}` in {workspace} failed (exit {done.returncode}): "
            f"{why}{message[-800:]}"
        )
    return done.stdout


def _is_dvc_workspace(workspace: Path, otherwise: str) -> bool:
    """Whether `workspace` has .dvc and dvc.yaml and is in a git checkout; logs one line if not."""
    lacking = next((name for name in (".dvc", "dvc.yaml") if not (workspace / name).exists()), None)
    around = (workspace.resolve(), *workspace.resolve().parents)
    if lacking is None and not any((place / ".git").exists() for place in around):
        lacking = "a git checkout around it"
    if lacking:
        log.info("%s has no %s: %s", workspace, lacking, otherwise)
    return lacking is None


def read_stages(workspace: Path) -> dict[str, Any]:
    """The stages of dvc.yaml by name; empty without the file."""
    import yaml

    file = workspace / "dvc.yaml"
    return (yaml.safe_load(file.read_text()) or {}).get("stages", {}) if file.exists() else {}


def outputs(stage: Mapping[str, Any]) -> list[str]:
    """Paths of the outputs, metrics and plots of a stage of dvc.yaml."""
    return [
        next(iter(entry)) if isinstance(entry, dict) else entry
        for kind in ("outs", "metrics", "plots")
        for entry in stage.get(kind, [])
    ]


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or the link limit
        shutil.copy2(source, target)


def _equal(one: Path, other: Path) -> bool:
    """Whether `other` equals what `publish` would write; files with the same inode are not read."""
    if one.is_file() != other.is_file():
        return False
    if one.is_file():
        return os.path.samefile(one, other) or filecmp.cmp(one, other, shallow=False)
    names = _files(one, UNVERSIONED)
    return names == _files(other) and all(_equal(one / name, other / name) for name in names)


def _files(folder: Path, without: Collection[str] = ()) -> set[str]:
    """Relative paths of the files in a directory, except top-level entries in `without`."""
    found = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return {path.as_posix() for path in found if path.parts[0] not in without}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
