"""Data from a Python package: a wheel of the configured package index, unpacked but not installed."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from ratchet.components.data.digests import check_digest, digest
from ratchet.components.errors import SourceError, nearest
from ratchet.components.stages.progress import watch_download


def fetch_wheel(rest: str, content: Path, sha256: str | None) -> tuple[Path, str]:
    """Download the wheel of `name==version[!inner/path]`, which `sources.check_address` has accepted, and
    unpack it, or only `inner/path`, into `content`. Returns the unpacked file or folder and the wheel's
    digest. `SourceError` if pip cannot download it, if the digest is not `sha256`, or if the wheel is unsafe
    or lacks the path.
    """
    requirement, _, inner = rest.partition("!")
    with (
        tempfile.TemporaryDirectory(dir=content.parent) as folder,
        tempfile.TemporaryDirectory(dir=content.parent) as partial,
    ):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--no-input",
            "--disable-pip-version-check",
            "--quiet",
            "--dest",
            folder,
            requirement,
        ]
        with watch_download(Path(partial)):  # pip downloads into its temporary folder, then copies
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
                env={**os.environ, "TMPDIR": partial},
            )
        if done.returncode:
            lines = [
                line for line in done.stderr.splitlines() if line.startswith("ERROR")
            ] or done.stderr.splitlines()
            raise SourceError(
                f"pip cannot download {requirement}: {lines[-1] if lines else 'no reason given'}; "
                "check the name, the version and the package index pip is configured for"
            )
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise SourceError(
                f"pip download {requirement} produced {[p.name for p in Path(folder).iterdir()]}, "
                "expected one wheel"
            )
        (wheel,) = wheels
        known = digest(wheel)
        check_digest(known, sha256, f"{wheel.name} of {requirement}")
        _unpack(wheel, content, inner)
    return (content / inner if inner else content), known


def _unpack(archive: Path, folder: Path, inner: str) -> None:
    """Extract a zip (or only the file or folder `inner`), rejecting links and names that leave the folder."""
    try:
        with zipfile.ZipFile(archive) as bundle:
            for member in bundle.infolist():
                name = PurePosixPath(member.filename)
                mode = member.external_attr >> 16
                if name.is_absolute() or ".." in name.parts or re.match(r"[A-Za-z]:|.*\\", member.filename):
                    raise SourceError(
                        f"{archive.name} is unsafe: its member {member.filename!r} leaves the folder"
                    )
                if stat.S_ISLNK(mode):
                    raise SourceError(f"{archive.name} is unsafe: its member {member.filename!r} is a link")
                if not inner or name == PurePosixPath(inner) or PurePosixPath(inner) in name.parents:
                    bundle.extract(member, folder)
            if inner and not (folder / inner).exists():
                raise SourceError(f"{archive.name} has no {inner!r}{nearest(inner, bundle.namelist())}")
    except zipfile.BadZipFile as error:
        raise SourceError(f"{archive.name} is not a readable wheel: {error}") from error
