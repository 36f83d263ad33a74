"""GPU energy use from sampled power."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ratchet.tasks.machine.system import EVERY_SECONDS
from ratchet.tasks.tracking.mlflow_text import lines

GAP = 6 * EVERY_SECONDS  # maximum gap between samples


def gpu_kwh(samples: Path, began: float, ended: float, devices: int) -> dict[str, float]:
    """`gpu_kwh`: energy of this machine's GPUs between two times (seconds since the epoch), from the power
    samples in system.jsonl. Empty if unknown: no power meter, a gap in the samples, or a number of GPUs other
    than `devices` (some then work for other processes).
    """
    import numpy

    samples_with_power = [
        (line["time"], power)
        for line in lines(samples.read_bytes() if samples.exists() else b"")
        if (power := _watts(line["metrics"], devices)) is not None
    ]
    if not samples_with_power:
        return {}
    times, watts = zip(*samples_with_power, strict=True)
    marks = [began, *(t for t in times if began < t < ended), ended]
    around = [
        max((t for t in times if t <= began), default=began),
        *marks[1:-1],
        min((t for t in times if t >= ended), default=ended),
    ]
    if max(numpy.diff(around)) > GAP:
        return {}
    return {"gpu_kwh": float(numpy.trapezoid(numpy.interp(marks, times, watts), marks)) / 3.6e6}


def _watts(metrics: Mapping[str, float], devices: int) -> float | None:
    gpus = {name.split("_")[1] for name in metrics if name.startswith("system/gpu_")}
    powers = [
        value for name, value in metrics.items() if re.fullmatch(r"system/gpu_\d+_power_usage_watts", name)
    ]
    return sum(powers) if len(powers) == len(gpus) == devices else None
