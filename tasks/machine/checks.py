"""Checks of the installation and the machine: packages, lock file, write access, disk, GPU."""

from __future__ import annotations

import functools
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
    """Result of one check: state, observation, advice if not ok, and the check's name."""

    state: Literal["ok", "warn", "fail"]
    seen: str
    do: str = ""
    name: str = ""


ok = functools.partial(Finding, "ok")
warn = functools.partial(Finding, "warn")
fail = functools.partial(Finding, "fail")


def packages_fit() -> Finding:
    """Compare the distribution's requirements with the installed packages."""
    from packaging.requirements import Requirement

    if installed(DISTRIBUTION) is None:
        return warn(f"{DISTRIBUTION} is not installed, only imported", "make install")
    requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    required = [one for one in requirements if not one.marker or one.marker.evaluate({"extra": ""})]
    wrong = []
    for one in required:
        version = installed(one.name)
        if version is None:
            wrong.append(f"{one.name} is missing")
        elif not one.specifier.contains(version, prereleases=True):
            wrong.append(f"{one.name} {version} is not {one.specifier}")
    if wrong:
        do = "make install, or pip install --constraint infra/constraints.txt --editable ."
        return fail("; ".join(wrong), do)
    return ok(f"{len(required)} required packages installed in compatible versions")


def locked(constraints: Path) -> Finding:
    """Compare installed versions with the lock file: other versions may work but are untested."""
    if not constraints.exists():
        return warn(f"no {constraints}", "install from a checkout to compare versions")
    pins = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", constraints.read_text(), re.MULTILINE))
    here = {name: version for name in pins if (version := installed(name))}
    other = [
        f"{name} {version} instead of {pins[name]}"
        for name, version in here.items()
        if version.split("+")[0] != pins[name].split("+")[0]
    ]
    if other:
        more = f" and {len(other) - 4} more" if len(other) > 4 else ""
        seen = f"{len(other)} of {len(here)} packages differ: {', '.join(other[:4])}{more}"
        return warn(seen, "make install installs the tested versions")
    return ok(f"{len(here)} packages as in {constraints.name}")


def writable(home: Path) -> Finding:
    if why := not_writable(home):
        return fail(why, "choose another --home, or fix its permissions")
    return ok(str(home.resolve()))


def disk(home: Path) -> Finding:
    free = shutil.disk_usage(existing(home)).free
    seen, do = f"{free / 1e9:.1f} GB free", "ratchet gc lists what can be deleted"
    return ok(seen) if free >= WARN_BYTES else fail(seen, do) if free < FAIL_BYTES else warn(seen, do)


def gpu() -> Finding:
    """Check GPU and torch; torch is imported only if the driver lists a GPU."""
    version, tool = installed("torch") or "none", shutil.which("nvidia-smi")
    done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10) if tool else None
    if done is None or not (listed := done.stdout.splitlines()):
        return ok(f"none; torch {version}, profile cpu")
    import torch

    if torch.cuda.is_available():
        return ok(f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}, torch {version}")
    return warn(
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
