"""Finished products at an address that several machines see: a folder, or an object store by any name that fsspec knows.

    <address>/products/<stage>-<key>.json     a product's manifest, put there last: with it the product is there
    <address>/products/<stage>-<key>.<name>   what is told about it and is no part of it
    <address>/files/<sha256>                  every file once, by its content

Nothing is taken on trust: each file is hashed while it arrives and has to be the one that its manifest names. Who reaches the
address is the address's business (`AWS_*`, `GOOGLE_*` of the environment); no credential passes through here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ratchet.components.errors import RatchetError, RecipeError, ServiceError, StoreError, nearest, redacted
from ratchet.components.storage.store import MANIFEST, Store, disk_errors, read_manifest
from ratchet.components.types import Artifact

CHUNK = 1 << 22  # bytes


def check(address: str) -> None:
    """`RecipeError` unless every worker can mean the same by it, and it carries no password. Imports no client."""
    from fsspec.registry import known_implementations

    protocol, colon, _ = address.partition("://")
    if not colon and not Path(address).is_absolute():
        raise RecipeError(f"artifacts: {address!r} would be another folder for every worker; give an absolute path or an address such as "
                          "s3://bucket/folder")
    if colon and protocol not in known_implementations:
        raise RecipeError(f"artifacts: {redacted(address)}: no file system is named {protocol!r}{nearest(protocol, known_implementations)}")
    if redacted(address) != address:
        raise RecipeError(f"artifacts: {redacted(address)}: a password does not belong here; workers have theirs in the environment")


class Exchange:
    """Products by address. `push` and `pull` may be interrupted at any moment and are then simply called again."""

    def __init__(self, address: str) -> None:
        """Raises `RecipeError` for what is no such address and for one whose protocol nothing installed here speaks."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        check(address)
        try:
            self.system, root = url_to_fs(address, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            raise RecipeError(f"artifacts: {address}: {error}; for s3:// install the extra `team`") from error
        self.address, self.root, self.local = address, root.rstrip("/"), isinstance(self.system, LocalFileSystem)

    def push(self, artifact: Artifact) -> None:
        """Put a product there, as much of it as is not there already."""
        manifest = read_manifest(artifact.path)
        if manifest is None:
            raise StoreError(f"{artifact.path} holds no finished product to exchange")
        with self._reached("sending", manifest["stage"]):
            for name, entry in manifest["files"].items():  # also where the manifest is there: somebody may have removed a damaged file
                there = self._file(entry)
                if not self.system.exists(there) or self.system.size(there) != entry["size"]:
                    self._put(artifact.path / name, there)
            if not self.system.exists(there := self._manifest(manifest["stage"], artifact.digest)):
                self._put(artifact.path / MANIFEST, there)

    def pull(self, store: Store, stage: str, key: str) -> Artifact | None:
        """The product in `store`, brought from here unless the store has it intact; None when it is not here either, or not all of it.

        Raises `StoreError` for a file that is not what its manifest says, `ServiceError` when the address cannot be reached.
        """
        if (known := store.intact(stage, key)) is not None:
            return known
        with self._reached("bringing", stage):
            try:
                manifest = json.loads(self.system.cat_file(self._manifest(stage, key)))
            except FileNotFoundError:
                return None
            self._check(manifest, stage, key)
            with store.working(stage, key) as work:
                if (known := store.intact(stage, key)) is not None:  # somebody was quicker
                    return known
                arriving = work.root / "arriving"  # not among what an interrupted stage has written: that one may yet go on
                shutil.rmtree(arriving, ignore_errors=True)
                arriving.mkdir()
                if not all(self._get(entry, arriving / name) for name, entry in manifest["files"].items()):
                    return None
                shutil.rmtree(work.product)
                arriving.replace(work.product)
                return store.publish(work, stage, key, manifest["kind"], manifest["parents"], manifest["meta"], manifest["made_with"])

    def tell(self, stage: str, key: str, file: Path) -> None:
        """Put a file about a product, by its name, beside the product."""
        with self._reached("telling of", stage):
            self._put(file, self._about(stage, key, file.name))

    def told(self, stage: str, key: str, name: str) -> str | None:
        """What `tell` put there, None when nothing was."""
        with self._reached("asking about", stage):
            try:
                return self.system.cat_file(self._about(stage, key, name)).decode()
            except FileNotFoundError:
                return None

    def _manifest(self, stage: str, key: str) -> str:
        return self._about(stage, key, "json")

    def _about(self, stage: str, key: str, name: str) -> str:
        return f"{self.root}/products/{stage}-{key}.{name}"

    def _file(self, entry: Mapping[str, Any]) -> str:
        return f"{self.root}/files/{entry['sha256']}"

    def _put(self, file: Path, there: str) -> None:
        """Whole or not at all: an object store shows no half of a file, a folder is given it under another name first."""
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
        """Whether there was such a file; it has arrived whole."""
        found = hashlib.sha256()
        try:
            opened = self.system.open(self._file(entry), "rb")
        except FileNotFoundError:
            return False
        with disk_errors(f"writing {file}"), opened as there:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as here:
                while chunk := there.read(CHUNK):
                    found.update(chunk)
                    here.write(chunk)
        if found.hexdigest() != entry["sha256"]:
            raise StoreError(f"{self.address}: the file {entry['sha256']} arrived with SHA-256 {found.hexdigest()}; "
                             "remove it there and run again, then it is sent once more")
        return True

    def _check(self, manifest: Any, stage: str, key: str) -> None:
        """What is read from outside is what was asked for, and names no file outside its own folder."""
        wanted = {"stage", "key", "kind", "parents", "meta", "made_with", "files"}
        if not isinstance(manifest, dict) or not wanted <= manifest.keys() or (manifest["stage"], manifest["key"]) != (stage, key):
            raise StoreError(f"{self.address}: what lies there as {stage} {key[:16]} is no manifest of it; remove {self._manifest(stage, key)}")
        for name in manifest["files"]:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise StoreError(f"{self.address}: the manifest of {stage} names {name!r}, which leads out of the store; it is not taken")

    @contextlib.contextmanager
    def _reached(self, doing: str, stage: str) -> Iterator[None]:
        """Whatever a file system of fsspec raises becomes one sentence that a later try may mend."""
        try:
            yield
        except RatchetError:
            raise
        except Exception as error:
            raise ServiceError(f"{doing} {stage}: the artifact store at {self.address} failed: {type(error).__name__}: {error}; "
                               "nothing is lost, run again when it is there") from error
