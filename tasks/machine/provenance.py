"""What a product was made with besides its inputs: the code's revision, the versions of packages, the machine."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = (  # what decides the numbers, then what decides how they are kept
    "torch", "transformers", "peft", "accelerate", "gguf", "safetensors", "tokenizers", "numpy", "pandas", "pyarrow", "scipy",
    "vllm", "deepspeed", "datasketch", "py3langid", "great_expectations", "prefect", "mlflow", "dvc",
)


@functools.cache
def revision() -> str:
    """The git revision of the code this process runs, `+changes` when the tree was dirty; empty where nobody knows.

    A checkout answers for itself. Code that is installed in an image has no git: RATCHET_REVISION says what it was built from.
    """
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():  # one further up is of whatever holds the environment we are installed in
        return os.environ.get("RATCHET_REVISION", "")
    try:
        head = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
        dirty = subprocess.run(["git", "-C", here, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "") if head.returncode == 0 else ""


@functools.cache
def packages() -> dict[str, str]:
    """Installed versions of Python and `PACKAGES`."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def machine() -> str:
    """System and processor: the same code on another kind of processor rounds differently."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{platform.system()} {platform.machine()} {model}".strip()
