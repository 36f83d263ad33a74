"""Provenance of an output besides its inputs: code revision, package versions, machine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from ratchet.components.piece import ROOT

PACKAGES = (  # packages that affect results, then those that affect storage
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "gguf",
    "safetensors",
    "tokenizers",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "vllm",
    "deepspeed",
    "datasketch",
    "py3langid",
    "great_expectations",
    "prefect",
    "mlflow",
    "dvc",
)


@functools.cache
def revision() -> str:
    """Git revision of the running code, with `+changes` if the tree is dirty; empty if unknown.

    From the checkout, or from RATCHET_REVISION in an image without git.
    """
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():  # a .git further up belongs to another project
        return os.environ.get("RATCHET_REVISION", "")
    try:
        head, dirty = (
            subprocess.run(["git", "-C", here, *command], capture_output=True, text=True, timeout=10)
            for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "") if head.returncode == 0 else ""


@functools.cache
def packages() -> dict[str, str]:
    """Installed versions of Python and `PACKAGES`."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def code_versions() -> dict[str, str]:
    """Versions that all ranks must share: this code, packages for computation and communication."""
    sources = hashlib.sha256()
    for file in sorted([*ROOT.rglob("*.py"), *Path(__file__).parents[1].rglob("*.py")]):
        sources.update(file.read_bytes())
    shared = ("torch", "transformers", "peft", "deepspeed")
    return {"ratchet": sources.hexdigest()[:12], **{name: packages().get(name, "none") for name in shared}}


@functools.cache
def machine() -> str:
    """Operating system and CPU model: results differ between CPU models by rounding."""
    model = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return f"{platform.system()} {platform.machine()} {model}".strip()
