"""SHA-256 of a file or a folder, and its comparison with the one that a recipe pins."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from ratchet.components.errors import SourceError


def digest(path: Path, of_file: Callable[[Path], str] | None = None) -> str:
    """SHA-256 of a file, or of a folder as one line `hash  relative/path` per file, sorted by path.

    `of_file` replaces reading a file (e.g. by a cache). `SourceError` for a folder with links that lead out
    of it.
    """
    of_file = of_file or _read
    if path.is_dir():
        lines = (f"{of_file(p)}  {p.relative_to(path).as_posix()}\n" for p in files_of(path))
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    return of_file(path)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(folder: Path) -> list[Path]:
    """All files of a folder. Symlinks may point inside the folder or, for a Hub snapshot, inside its cache;
    others are a `SourceError`.
    """
    within = folder.resolve()
    within = next(
        (p.parent.parent for p in (within, *within.parents) if p.parent.name == "snapshots"), within
    )
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(within):
            raise SourceError(
                f"{path} is a link that leads out of its folder, to {path.resolve()}; replace it by a copy"
            )
    return sorted(
        (p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.relative_to(folder).as_posix()
    )


def check_digest(found: str, expected: str | None, what: str) -> None:
    if expected is not None and found != expected.lower():
        raise SourceError(
            f"{what} has SHA-256 {found}, the recipe pins {expected}; nothing was unpacked. "
            "To use the new content, update sha256 in the recipe"
        )
