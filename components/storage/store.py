"""Content-addressed store of stage outputs. Outputs are published atomically.

    <home>/store/<stage>-<key>/           output files; `manifest.json` is written last, then the directory
                                          renamed into place
    <home>/store/.work/<stage>-<key>/     partial output and progress of an unfinished stage; survives a crash
    <home>/runs/<run>/                    the resolved recipe and one link per stage into the store
                                          (`run_directory.py`)

A key is the digest of a stage's slice of the recipe, the keys of its inputs and the source code it can reach
(`definitions.py`; comments and unused functions are not included). The manifest holds the SHA-256 of every
file, compared by `verify`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.components.errors import DamageError, StoreError
from ratchet.components.types import Artifact

MANIFEST = "manifest.json"
DATED = ("metrics.jsonl", "data_docs")  # contain timestamps: excluded from the content digest
TEMPORARY = re.compile(r"\..+\.\d+")  # names of `write_atomic` and `save_state` before they are complete


def digest(value: Any) -> str:
    """SHA-256 of a plain value as canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def content(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Digest of a stage's output from its manifest's `files`, equal if a rerun gives the same."""
    return digest({name: entry["sha256"] for name, entry in files.items() if name.split("/")[0] not in DATED})


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn a full disk, a quota, a file size limit or a permission error into a `StoreError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            full = (
                "a file may not grow further (ulimit -f)"
                if error.errno == errno.EFBIG
                else "the disk is full"
            )
            raise StoreError(
                f"{doing}: {full}; finished outputs are intact. Free some space and run again "
                "to continue from the last checkpoint"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS):
            raise StoreError(
                f"{doing}: not allowed to write at {error.filename}; choose another --home"
            ) from error
        raise


def write_atomic(path: Path, text: str, *, private: bool = False) -> None:
    """Replace a small file atomically: readers see the old text or the new one. `private`: only this user
    may read it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with disk_errors(f"writing {path}"), temporary.open("w") as file:
        if private:
            temporary.chmod(0o600)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


@dataclass(frozen=True)
class Workspace:
    """Directory of an unfinished stage. `product` becomes the artifact, `progress` is deleted then."""

    root: Path

    @property
    def product(self) -> Path:
        return self.root / "product"

    @property
    def progress(self) -> Path:
        return self.root / "progress"

    @property
    def metrics(self) -> Path:
        return self.product / "metrics.jsonl"

    @property
    def steps(self) -> Path:
        return self.root / "steps.json"

    def restart(self) -> None:
        """Discard the progress and start over; the old one is kept aside until the output is complete."""
        os.replace(self.progress, self.root / f"damaged-{time.time_ns()}")
        self.progress.mkdir()


class Store:
    def __init__(self, home: Path) -> None:
        self.home = home.resolve()
        self.root = self.home / "store"

    def path(self, stage: str, key: str) -> Path:
        return self.root / f"{stage}-{key[:16]}"

    def get(self, stage: str, key: str) -> Artifact | None:
        """The finished artifact, or None. `DamageError` if file sizes differ from its manifest."""
        path = self.path(stage, key)
        manifest = read_manifest(path)
        if manifest is None or manifest["key"] != key:
            return None
        for name, entry in manifest["files"].items():
            file = path / name
            if not file.is_file() or file.stat().st_size != entry["size"]:
                raise DamageError(
                    f"{file} is damaged: expected {entry['size']} bytes, found "
                    f"{file.stat().st_size if file.is_file() else 'nothing'}; run again to recompute it"
                )
        return Artifact(manifest["kind"], path, key, tuple(manifest["parents"]), manifest["meta"])

    def intact(self, stage: str, key: str) -> Artifact | None:
        """The finished artifact if every file matches its SHA-256; None if it is missing or damaged."""
        with contextlib.suppress(DamageError):
            if (artifact := self.get(stage, key)) is not None:
                self.verify(artifact)
                return artifact
        return None

    @contextlib.contextmanager
    def working(self, stage: str, key: str) -> Iterator[Workspace]:
        """The stage's workspace under an exclusive lock; a second process waits."""
        root = self.root / ".work" / f"{stage}-{key[:16]}"
        with disk_errors(f"preparing {root}"):
            root.mkdir(parents=True, exist_ok=True)
            with (self.root / ".work" / f"{root.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                workspace = Workspace(root)
                workspace.product.mkdir(parents=True, exist_ok=True)
                workspace.progress.mkdir(parents=True, exist_ok=True)
                _remove_leftovers(workspace)
                yield workspace

    @contextlib.contextmanager
    def steady(self, *, sweeping: bool = False) -> Iterator[None]:
        """Shared lock against removal from the store, held while an artifact is found or published and linked
        to a run. Garbage collection takes it exclusively (`sweeping`).
        """
        with disk_errors(f"opening {self.root}"):
            self.root.mkdir(parents=True, exist_ok=True)
            lock = (self.root / ".lock").open("w")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX if sweeping else fcntl.LOCK_SH)
            yield

    def publish(
        self,
        workspace: Workspace,
        stage: str,
        key: str,
        kind: str,
        parents: Sequence[str],
        meta: Mapping[str, Any],
        made_with: Mapping[str, Any] | None = None,
    ) -> Artifact:
        """Publish the output: hash, fsync, write the manifest, rename. The artifact exists only afterwards.
        `made_with` records the stage's options, inputs by role, code revision and package versions.

        A damaged artifact with the same key is replaced and kept aside. `StoreError` if the new content
        differs from the old one's, since downstream artifacts would not follow from it; reports, which have
        no downstream, are exempt.
        """
        target = self.path(stage, key)
        with disk_errors(f"publishing {stage}"):
            entries = {}
            for file in files_below(workspace.product):
                descriptor = os.open(file, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
                entries[str(file.relative_to(workspace.product))] = {
                    "size": file.stat().st_size,
                    "sha256": file_digest(file),
                }
            manifest = {
                "stage": stage,
                "key": key,
                "kind": kind,
                "parents": list(parents),
                "meta": dict(meta),
                "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "made_with": dict(made_with or {}),
                "content": content(entries),
                "files": entries,
            }
            write_atomic(workspace.product / MANIFEST, json.dumps(manifest, indent=1))
            if target.exists():  # a damaged or foreign directory: keep it aside
                before = read_manifest(target) or {}
                if (
                    kind != "report"
                    and before.get("key") == key
                    and content(before["files"]) == before.get("content") != manifest["content"]
                ):
                    raise StoreError(
                        f"{target} is damaged, and recomputing it gave a different result, from which "
                        "existing downstream outputs "
                        f"do not follow; restore its files, or remove {target} to continue with the new "
                        "result"
                    )
                os.replace(target, target.with_name(f".replaced-{target.name}-{time.time_ns()}"))
            os.replace(workspace.product, target)
            shutil.rmtree(workspace.root, ignore_errors=True)
        artifact = self.get(stage, key)
        assert artifact is not None
        return artifact

    def verify(self, artifact: Artifact) -> None:
        """Compare every file's SHA-256 with the manifest; `DamageError` names the first that differs."""
        manifest = read_manifest(artifact.path) or {"files": {}}
        for name, entry in manifest["files"].items():
            if file_digest(artifact.path / name) != entry["sha256"]:
                raise DamageError(
                    f"{artifact.path / name} is damaged: its SHA-256 differs from the manifest; run again "
                    "to recompute it"
                )


def _remove_leftovers(workspace: Workspace) -> None:
    """Remove what an earlier attempt left: files and checkpoints that were being written when it was killed
    or the disk was full, and the manifest of an output that was not published. They are no part of an output.
    """
    (workspace.product / MANIFEST).unlink(missing_ok=True)
    for path in [*workspace.product.rglob(".*"), *workspace.progress.glob(".*")]:
        if TEMPORARY.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a finished directory, or None if there is none or it cannot be parsed."""
    try:
        return json.loads((path / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
