"""Processor, memory and GPU while a run goes on, under the names of MLflow's own system metrics, so that its page draws them.

MLflow's monitor asks the server from a thread of its own and loses what it cannot send; this one appends a line to
`<run>/tracking/system.jsonl` and the mirror ships it as it ships everything else. A sample takes about a millisecond. What the worker of a
stage elsewhere saw comes with the stage's product.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

EVERY_SECONDS = 10.0


def samples_of(run: Path, stage: str = "") -> Path:
    """Where the samples of a run lie; of a `stage` that another machine made, those of that machine."""
    return run / "tracking" / (f"system-{stage}.jsonl" if stage else "system.jsonl")


@contextlib.contextmanager
def sampled(file: Path, every_seconds: float = EVERY_SECONDS) -> Iterator[None]:
    """Append a sample to `file` at once, every `every_seconds`, and at the end. A run that continues continues the file."""
    stop = threading.Event()
    first = _first_time(file) or time.time()
    thread = threading.Thread(target=_serve, args=(file, first, every_seconds, stop), name="system-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5)


def _serve(file: Path, first: float, every_seconds: float, stop: threading.Event) -> None:
    with contextlib.suppress(Exception):  # a machine that cannot be looked at stops no run
        devices = gpus()
        _percent()  # the first call has nothing to compare with
        last = False
        while True:
            now = time.time()
            line = {"step": round(now - first), "time": now, "metrics": sample(devices)}
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as out:
                out.write(json.dumps(line) + "\n")
            if last:
                return
            last = stop.wait(every_seconds)


def sample(devices: list[Any]) -> dict[str, float]:
    """One look at the machine, and at this process with its children."""
    import psutil

    memory, ours = psutil.virtual_memory(), 0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            ours += process.memory_info().rss
    found = {
        "system/cpu_utilization_percentage": _percent(),
        "system/system_memory_usage_megabytes": (memory.total - memory.available) / 1e6,
        "system/system_memory_usage_percentage": memory.percent,
        "system/run_memory_usage_megabytes": ours / 1e6,
    }
    for number, device in enumerate(devices):
        found |= _gpu(f"system/gpu_{number}", device)
    return {name: round(float(value), 3) for name, value in found.items()}


def _percent() -> float:
    import psutil

    return psutil.cpu_percent()


def gpus() -> list[Any]:
    """NVIDIA's devices, where their binding (nvidia-ml-py) and a driver are there."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _gpu(name: str, device: Any) -> dict[str, float]:
    """What this device tells: a slice of one (MIG) has no utilisation, some boards no power meter."""
    import pynvml

    nvml: Any = pynvml  # a checker of types takes its C structures for text
    asked: dict[str, Callable[[], float]] = {
        "memory_usage_megabytes": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used / 1e6,
        "utilization_percentage": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu,
        "power_usage_watts": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
    }
    found = {}
    for what, look in asked.items():
        with contextlib.suppress(nvml.NVMLError):
            found[f"{name}_{what}"] = look()
    return found


def on_clock_of(file: Path, samples: str) -> str:
    """Samples of another machine, their steps counted in seconds from where those in `file` begin."""
    lines = [json.loads(line) for line in samples.splitlines()]
    first = _first_time(file) or (lines[0]["time"] if lines else 0.0)
    return "".join(json.dumps({**line, "step": round(line["time"] - first)}) + "\n" for line in lines)


def _first_time(file: Path) -> float | None:
    try:
        with file.open() as lines:
            line = json.loads(lines.readline())
            return line["time"] - line["step"]
    except (OSError, ValueError, KeyError):
        return None
