"""Shared by all measured processes: inputs, clock, peak memory, one line of JSON as result.

Standard library only, since peers import it from environments without this project's packages. A process
measures one task once, so its peak memory (VmHWM) includes model, optimiser, activations and the libraries.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

WARM_UP = 1
"""Steps at the start of a training work that are done and checked, but not timed."""


class Clock:
    """Seconds of the timed parts: `with clock: ...` appends one."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> Clock:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds.append(time.perf_counter() - self._started)


def memory() -> dict[str, float]:
    """Resident memory of this process in MiB, current and peak."""
    lines = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return {"mib": int(lines["VmRSS"].split()[0]) / 1024, "peak_mib": int(lines["VmHWM"].split()[0]) / 1024}


def versions(*names: str) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in names}


def main(
    works: Mapping[str, Callable[[dict[str, Any], str], dict[str, Any]]], packages: tuple[str, ...]
) -> None:
    """`--work W --setting S --inputs FILE --threads N`: do the task once and print the measurements.

    A task returns `seconds` and `tokens` (one number per timed part, without warm-up) and `checks`: lists of
    numbers that every library must reproduce.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True, choices=sorted(works))
    parser.add_argument("--setting", default="default")
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    import torch

    if given.threads:
        torch.set_num_threads(given.threads)
    inputs = json.loads(given.inputs.read_text())
    found = works[given.work](inputs, given.setting)
    print(
        "RESULT "
        + json.dumps(
            {**found, **memory(), "threads": torch.get_num_threads(), "versions": versions(*packages)}
        )
    )
