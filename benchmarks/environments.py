"""A virtual environment per peer, created on first use, separate from this project's."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from ratchet.components.errors import SourceError

HERE = Path(__file__).parent
CONSTRAINED = {"trl": "constraints.txt", "vllm-cuda": "constraints-vllm.txt"}
"""Files in infra/ that pin a peer's packages; TRL's are the torch and transformers of this project."""
BROKEN = {"vllm": ("torchvision", "torchaudio", "torchcodec")}
"""Packages that were built for a different torch than the peer's, and are removed."""


def python_of(name: str, folder: Path) -> Path:
    """The Python interpreter of a peer's environment, created from `requirements-<name>.txt` if missing.
    `SourceError` if that fails.
    """
    needs = HERE / f"requirements-{name}.txt"
    constraints = HERE.parent / "infra" / CONSTRAINED[name] if name in CONSTRAINED else None
    place, python = folder / name, folder / name / "bin" / "python"
    asked = hashlib.sha256(
        needs.read_bytes() + (constraints.read_bytes() if constraints else b"")
    ).hexdigest()
    done = place / "made-from"
    if done.exists() and done.read_text() == asked:
        return python
    print(f"making the environment of {name} in {place} (once; minutes)", flush=True)
    limits = ["--constraint", str(constraints)] if constraints else []
    _run(name, [sys.executable, "-m", "venv", "--clear", str(place)])
    _run(name, [str(python), "-m", "pip", "install", "--quiet", "--upgrade", "pip"])
    _run(name, [str(python), "-m", "pip", "install", "--quiet", *limits, "--requirement", str(needs)])
    if name in BROKEN:
        _run(name, [str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *BROKEN[name]])
    done.write_text(asked)
    return python


def _run(name: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SourceError(
            f"the environment of {name} could not be made: {' '.join(command[1:])} ended with "
            f"{done.returncode}:\n"
            f"{done.stderr[-2000:]}\nLeave this peer out with --without {name}"
        )
