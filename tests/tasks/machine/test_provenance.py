"""Recorded code revision: in a checkout, in an image, as an installed package."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.tasks.machine import provenance

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git(place: Path, *arguments: str) -> str:
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", "-C", place, *name, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Directory of the code under test, in place of the real one."""
    file = tmp_path / "code" / "tasks" / "machine" / "provenance.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(file))
    monkeypatch.delenv("RATCHET_REVISION", raising=False)
    provenance.revision.cache_clear()
    yield tmp_path / "code"
    provenance.revision.cache_clear()


def test_revision_of_a_checkout_is_its_commit_and_marks_changes(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(code, "init", "-q")
    git(code, "add", ".")
    git(code, "commit", "-qm", "one")
    monkeypatch.setenv("RATCHET_REVISION", COMMIT)  # of the image that this checkout is mounted into
    assert provenance.revision() == git(code, "rev-parse", "HEAD")
    (code / "tasks" / "machine" / "provenance.py").write_text("changed")
    provenance.revision.cache_clear()
    changed = provenance.revision()
    assert changed == git(code, "rev-parse", "HEAD") + "+changes"
    assert changed == git(code, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+changes"), (
        "what an image is built with"
    )


def test_revision_of_an_image_comes_from_its_environment(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("RATCHET_REVISION", COMMIT)
    assert provenance.revision() == COMMIT


def test_installed_package_ignores_a_surrounding_repository(code: Path) -> None:
    git(code.parent, "init", "-q")
    git(code.parent, "add", ".")
    git(code.parent, "commit", "-qm", "somebody's project, with a virtual environment in it")
    assert provenance.revision() == ""
