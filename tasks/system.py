"""Processor, memory and GPU while a run goes on, under the names of MLflow's own system metrics, so that its page draws them.

MLflow's monitor asks the server from a thread of its own and loses what it cannot send; this one appends a line to
`<run>/tracking/system.jsonl` and the mirror ships it as it ships everything else. A sample takes about a millisecond.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EVERY_SECONDS = 10.0


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
        gpus = _gpus()
        _percent()  # the first call has nothing to compare with
        last = False
        while True:
            now = time.time()
            line = {"step": round(now - first), "time": now, "metrics": sample(gpus)}
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as out:
                out.write(json.dumps(line) + "\n")
            if last:
                return
            last = stop.wait(every_seconds)


def sample(gpus: list[Any]) -> dict[str, float]:
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
    for number, handle in enumerate(gpus):
        import pynvml

        used, busy = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetUtilizationRates(handle)
        found |= {f"system/gpu_{number}_memory_usage_megabytes": used.used / 1e6, f"system/gpu_{number}_utilization_percentage": busy.gpu,
                  f"system/gpu_{number}_power_usage_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}
    return {name: round(float(value), 3) for name, value in found.items()}


def _percent() -> float:
    import psutil

    return psutil.cpu_percent()


def _gpus() -> list[Any]:
    """NVIDIA's devices, where their binding (nvidia-ml-py) and a driver are there."""
    if importlib.util.find_spec("pynvml") is None:
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _first_time(file: Path) -> float | None:
    try:
        with file.open() as lines:
            line = json.loads(lines.readline())
            return line["time"] - line["step"]
    except (OSError, ValueError, KeyError):
        return None
