"""What every measured process shares: inputs from disk, a clock, its own peak memory, one line of JSON at the end.

Standard library only: peers import it from environments that do not have our packages. A process measures one work once,
so its peak memory (VmHWM) belongs to that work alone: model, optimiser, activations, and the libraries themselves.
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
    """Seconds of the parts that count: `with clock: ...` appends one."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> Clock:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds.append(time.perf_counter() - self._started)


def memory() -> dict[str, float]:
    """Resident MiB of this process, now and at its peak."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {"mib": int(lines["VmRSS"].split()[0]) / 1024, "peak_mib": int(lines["VmHWM"].split()[0]) / 1024}


def versions(*names: str) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in names}


def main(works: Mapping[str, Callable[[dict[str, Any], str], dict[str, Any]]], packages: tuple[str, ...]) -> None:
    """`--work W --setting S --inputs FILE --threads N`: do the work once and print what was measured.

    A work returns `seconds` and `tokens` (one number a timed part, warm-up left out by us) and `checks`: lists of numbers
    that any library doing the same work must find too.
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
    print("RESULT " + json.dumps({**found, **memory(), "threads": torch.get_num_threads(), "versions": versions(*packages)}))
