"""Processor, memory and GPU while a run goes on, under the names of MLflow's own system metrics, so that its page draws them.

MLflow's monitor asks the server from a thread of its own and loses what it cannot send; this one appends a line to
`<run>/tracking/system.jsonl`, which is uploaded as all metrics files are. A sample takes about a millisecond. What the worker of a
stage elsewhere saw comes with the stage's product.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ratchet.components.errors import RecipeError

EVERY_SECONDS = 10.0
DRIVER = Path("/dev/nvidiactl")  # there where a program can use NVIDIA's driver


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


def visible_gpus() -> dict[str, str]:
    """The GPUs this process may use, in order: what each is called on the whole machine -> what CUDA_VISIBLE_DEVICES calls it.

    Those listed there where it is set, else all that the driver has; torch, which would touch them, is not asked. On the whole machine
    a GPU is its UUID: the jobs of a scheduler may each call theirs 0. Without the binding it is what the list says. Raises `RecipeError`
    where there is a driver, and neither a list nor an answer.
    """
    listed, uuids = os.environ.get("CUDA_VISIBLE_DEVICES"), _uuids()
    if listed is None and not uuids and DRIVER.exists():
        raise RecipeError("`gpus` are asked for, and NVIDIA's driver does not tell which this machine has; pip install 'ratchet-rlhf[scale]', "
                          "or list them in CUDA_VISIBLE_DEVICES")
    said = (name.strip() for name in listed.split(",")) if listed is not None else map(str, range(len(uuids)))
    return {_uuid(name, uuids): name for name in itertools.takewhile(lambda name: name not in ("", "-1"), said)}  # CUDA stops there too


def _uuids() -> list[str]:
    if not (devices := gpus()):
        return []
    import pynvml

    return [pynvml.nvmlDeviceGetUUID(device) for device in devices]


def _uuid(name: str, uuids: Sequence[str]) -> str:
    """The one of `uuids` that CUDA means by `name`, its number or beginning; a slice of a GPU (MIG) has a name of its own."""
    found = uuids[int(name):][:1] if name.isdecimal() else [uuid for uuid in uuids if uuid.startswith(name)]
    return found[0] if len(found) == 1 else name


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
