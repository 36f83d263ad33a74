"""Tokens of annotators: one random token a pseudonym, of which a queue folder stores the SHA-256 only. A
queue that has the file uses tokens, also after the last one was revoked.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from filelock import FileLock

from ratchet.components.errors import RecipeError
from ratchet.components.storage.store import write_atomic

FILE, LOCK = "annotators.json", ".annotators.lock"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
"""A pseudonym."""


def checked(name: str) -> str:
    """The pseudonym; `RecipeError` if it is none."""
    if not NAME.fullmatch(name):
        raise RecipeError(
            f"annotator {name!r}: expected a pseudonym of at most 40 letters, digits, dots, dashes and "
            "underscores"
        )
    return name


def uses_tokens(folder: Path) -> bool:
    """Whether annotators of the queue need a token."""
    return (folder / FILE).exists()


def digests(folder: Path) -> dict[str, str]:
    """Pseudonym → SHA-256 of the token; empty if the queue has no annotators with tokens."""
    file = folder / FILE
    return json.loads(file.read_text()) if file.exists() else {}


def issue(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """New tokens, pseudonym → token, which cannot be read again; a new one of a name replaces the old."""
    made = {checked(name): secrets.token_urlsafe(24) for name in names}
    if made:
        with FileLock(folder / LOCK):
            _write(folder, digests(folder) | {name: _digest(token) for name, token in made.items()})
    return made


def revoke(folder: Path, name: str) -> None:
    """Delete an annotator's token."""
    with FileLock(folder / LOCK):
        known = digests(folder)
        if known.pop(name, None) is not None:
            _write(folder, known)


def holder(token: str, known: Mapping[str, str]) -> str | None:
    """Pseudonym whose token this is, None for a wrong one; compares every digest in constant time."""
    own = _digest(token)
    return next((name for name, digest in known.items() if hmac.compare_digest(own, digest)), None)


def _write(folder: Path, known: Mapping[str, str]) -> None:
    write_atomic(folder / FILE, json.dumps(known, indent=1) + "\n")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
