"""Artifact transfer between machines through a shared folder or an object store (any fsspec address).

    <address>/products/<stage>-<key>.json     manifest of an artifact, uploaded last
    <address>/products/<stage>-<key>.<name>   additional files about the artifact, not part of it
    <address>/files/<sha256>                  every file once, by content

Every file is hashed while it is downloaded and compared with its manifest. Credentials are the file system's
concern (`AWS_*`, `GOOGLE_*` variables).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ratchet.components.errors import RatchetError, RecipeError, ServiceError, StoreError, nearest, redacted
from ratchet.components.storage.store import MANIFEST, Store, disk_errors, file_digest, read_manifest
from ratchet.components.types import Artifact


def check(address: str) -> None:
    """`RecipeError` unless the address means the same on every worker and has no password."""
    from fsspec.registry import known_implementations

    protocol, colon, _ = address.partition("://")
    if not colon and not Path(address).is_absolute():
        raise RecipeError(
            f"artifacts: {address!r} is a different folder for each worker; use an absolute path or an "
            "address such as s3://bucket/folder"
        )
    if colon and protocol not in known_implementations:
        hint = nearest(protocol, known_implementations)
        raise RecipeError(f"artifacts: {redacted(address)}: unknown file system {protocol!r}{hint}")
    if redacted(address) != address:
        raise RecipeError(
            f"artifacts: {redacted(address)}: addresses must not contain passwords; set credentials in "
            "the workers' environment"
        )


class Exchange:
    """Artifacts at an address. `push` and `pull` may be interrupted and repeated at any time."""

    def __init__(self, address: str) -> None:
        """`RecipeError` for an invalid address, or for a protocol without an installed client."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        check(address)
        try:
            self.system, root = url_to_fs(address, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            raise RecipeError(f"artifacts: {address}: {error}; for s3:// install the extra `team`") from error
        self.address, self.root = address, root.rstrip("/")
        self.local = isinstance(self.system, LocalFileSystem)

    def push(self, artifact: Artifact) -> None:
        """Upload the missing files of an artifact."""
        manifest = read_manifest(artifact.path)
        if manifest is None:
            raise StoreError(f"{artifact.path} contains no finished artifact to transfer")
        with self._reached("uploading", manifest["stage"]):
            # even if the manifest exists: a damaged file may have been removed
            for name, entry in manifest["files"].items():
                there = self._file(entry)
                if not self.system.exists(there) or self.system.size(there) != entry["size"]:
                    self._put(artifact.path / name, there)
            if not self.system.exists(there := self._about(manifest["stage"], artifact.digest, "json")):
                self._put(artifact.path / MANIFEST, there)

    def pull(self, store: Store, stage: str, key: str) -> Artifact | None:
        """Download the artifact to `store`, unless the store has it intact; None if it is not (completely)
        here.

        `StoreError` for a file that does not match its manifest, `ServiceError` if the address is
        unreachable.
        """
        if (known := store.intact(stage, key)) is not None:
            return known
        with self._reached("downloading", stage):
            if (text := self._read(stage, key, "json")) is None:
                return None
            manifest = json.loads(text)
            self._check(manifest, stage, key)
            with store.working(stage, key) as work:
                if (known := store.intact(stage, key)) is not None:  # another process was faster
                    return known
                arriving = work.root / "arriving"  # not among files of an interrupted stage, which may resume
                shutil.rmtree(arriving, ignore_errors=True)
                arriving.mkdir()
                if not all(self._get(entry, arriving / name) for name, entry in manifest["files"].items()):
                    return None
                shutil.rmtree(work.product)
                arriving.replace(work.product)
                about = (manifest[name] for name in ("kind", "parents", "meta", "made_with"))
                return store.publish(work, stage, key, *about)

    def put_note(self, stage: str, key: str, file: Path) -> None:
        """Upload a file about an artifact, next to it."""
        with self._reached("uploading a note of", stage):
            self._put(file, self._about(stage, key, file.name))

    def get_note(self, stage: str, key: str, name: str) -> str | None:
        """Content of a file uploaded by `put_note`, or None."""
        with self._reached("reading a note of", stage):
            return self._read(stage, key, name)

    def _read(self, stage: str, key: str, name: str) -> str | None:
        try:
            return self.system.cat_file(self._about(stage, key, name)).decode()
        except FileNotFoundError:
            return None

    def _about(self, stage: str, key: str, name: str) -> str:
        return f"{self.root}/products/{stage}-{key}.{name}"

    def _file(self, entry: Mapping[str, Any]) -> str:
        return f"{self.root}/files/{entry['sha256']}"

    def _put(self, file: Path, there: str) -> None:
        """Upload atomically: object stores do so by themselves, folders through a temporary name."""
        if not self.local:
            self.system.put_file(str(file), there)
            return
        with disk_errors(f"writing {there}"):
            Path(there).parent.mkdir(parents=True, exist_ok=True)
            half = Path(f"{there}.{uuid.uuid4().hex}")
            try:
                shutil.copyfile(file, half)
                half.replace(there)
            finally:
                half.unlink(missing_ok=True)

    def _get(self, entry: Mapping[str, Any], file: Path) -> bool:
        """Download and verify a file; False if it does not exist."""
        with disk_errors(f"writing {file}"):
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.system.get_file(self._file(entry), str(file))
            except FileNotFoundError:
                return False
        if (found := file_digest(file)) != entry["sha256"]:
            raise StoreError(
                f"{self.address}: the file {entry['sha256']} arrived with SHA-256 {found}; "
                "remove it there and run again to upload it once more"
            )
        return True

    def _check(self, manifest: Any, stage: str, key: str) -> None:
        """Check that a downloaded manifest is the requested one and has no paths outside its folder."""
        wanted = {"stage", "key", "kind", "parents", "meta", "made_with", "files"}
        if (
            not isinstance(manifest, dict)
            or not wanted <= manifest.keys()
            or (manifest["stage"], manifest["key"]) != (stage, key)
        ):
            raise StoreError(
                f"{self.address}: invalid manifest of {stage} {key[:16]}; remove "
                f"{self._about(stage, key, 'json')}"
            )
        for name in manifest["files"]:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise StoreError(
                    f"{self.address}: the manifest of {stage} names {name!r}, which leads out of the "
                    "store; the artifact is rejected"
                )

    @contextlib.contextmanager
    def _reached(self, doing: str, stage: str) -> Iterator[None]:
        """Convert any exception of an fsspec file system to a retryable `ServiceError`."""
        try:
            yield
        except RatchetError:
            raise
        except Exception as error:
            raise ServiceError(
                f"{doing} {stage}: the artifact store at {self.address} failed: {type(error).__name__}: "
                f"{error}; nothing is lost, run again when it is reachable"
            ) from error
