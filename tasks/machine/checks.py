"""Checks of the installation and the machine: packages, lock file, write access, disk, GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

DISTRIBUTION = "ratchet-rlhf"
WARN_BYTES, FAIL_BYTES = 10e9, 1e9


@dataclass(frozen=True)
class Finding:
    """Result of one check: name, state, observation, and advice if not ok."""

    name: str
    state: Literal["ok", "warn", "fail"]
    seen: str
    do: str = ""


def packages_fit() -> Finding:
    """Compare the distribution's requirements with the installed packages."""
    from packaging.requirements import Requirement

    if installed(DISTRIBUTION) is None:
        return Finding("packages", "warn", f"{DISTRIBUTION} is not installed, only imported", "make install")
    wrong, checked = [], 0
    for text in metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        checked += 1
        version = installed(requirement.name)
        if version is None:
            wrong.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if wrong:
        return Finding(
            "packages",
            "fail",
            "; ".join(wrong),
            "make install, or pip install --constraint infra/constraints.txt --editable .",
        )
    return Finding("packages", "ok", f"{checked} required packages installed in compatible versions")


def locked(constraints: Path) -> Finding:
    """Compare installed versions with the lock file: other versions may work but are untested."""
    if not constraints.exists():
        return Finding(
            "lock file", "warn", f"no {constraints}", "install from a checkout to compare versions"
        )
    pins = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", constraints.read_text(), re.MULTILINE))
    versions = {name: installed(name) for name in pins}
    other = [
        f"{name} {version} instead of {pins[name]}"
        for name, version in versions.items()
        if version and version.split("+")[0] != pins[name].split("+")[0]
    ]
    here = sum(v is not None for v in versions.values())
    if other:
        more = f" and {len(other) - 4} more" if len(other) > 4 else ""
        return Finding(
            "lock file",
            "warn",
            f"{len(other)} of {here} packages differ: {', '.join(other[:4])}{more}",
            "make install installs the tested versions",
        )
    return Finding("lock file", "ok", f"{here} packages as in {constraints.name}")


def writable(home: Path) -> Finding:
    if why := not_writable(home):
        return Finding("write access", "fail", why, "choose another --home, or fix its permissions")
    return Finding("write access", "ok", str(home.resolve()))


def disk(home: Path) -> Finding:
    free = shutil.disk_usage(existing(home)).free
    seen = f"{free / 1e9:.1f} GB free"
    if free >= WARN_BYTES:
        return Finding("disk", "ok", seen)
    return Finding(
        "disk", "fail" if free < FAIL_BYTES else "warn", seen, "ratchet gc lists what can be deleted"
    )


def gpu() -> Finding:
    """Check GPU and torch; torch is imported only if the driver lists a GPU."""
    version = installed("torch") or "none"
    tool = shutil.which("nvidia-smi")
    listed = (
        subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10).stdout.splitlines()
        if tool
        else []
    )
    if not listed:
        return Finding("GPU", "ok", f"none; torch {version}, profile cpu")
    import torch

    if torch.cuda.is_available():
        return Finding(
            "GPU", "ok", f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}, torch {version}"
        )
    return Finding(
        "GPU",
        "warn",
        f"the driver lists {len(listed)}, torch {version} sees none",
        "install a CUDA build of torch that fits the driver, or check CUDA_VISIBLE_DEVICES",
    )


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def not_writable(path: Path) -> str:
    """Why the path is not writable (by trying); empty if it is."""
    place = existing(path)
    try:
        with tempfile.NamedTemporaryFile(dir=place):
            return ""
    except OSError as error:
        return f"{place}: {error.strerror}"


def existing(path: Path) -> Path:
    """The path, or its nearest existing parent folder."""
    path = path.resolve()
    return next(p for p in (path, *path.parents) if p.exists())
