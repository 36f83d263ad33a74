"""CPU, memory and GPU monitoring of a run, with the metric names of MLflow's system metrics.

MLflow's own monitor sends from a thread and loses what it cannot send. This one appends to
`<run>/tracking/system.jsonl`, which is uploaded like all metrics files. A sample takes about a millisecond.
Samples of a remote stage arrive with the stage's output.
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
DRIVER = Path("/dev/nvidiactl")  # exists if the NVIDIA driver is usable


def samples_of(run: Path, stage: str = "") -> Path:
    """Samples file of a run, or of a remote `stage`."""
    return run / "tracking" / (f"system-{stage}.jsonl" if stage else "system.jsonl")


@contextlib.contextmanager
def sampled(file: Path, every_seconds: float = EVERY_SECONDS) -> Iterator[None]:
    """Append samples to `file` at once, every `every_seconds`, and at the end; a resumed run continues it."""
    stop = threading.Event()
    first = _first_time(file) or time.time()

    def work() -> None:
        with contextlib.suppress(Exception):  # monitoring errors must not stop a run
            import psutil

            devices, last = gpus(), False
            psutil.cpu_percent()  # the first call only initialises the counter
            file.parent.mkdir(parents=True, exist_ok=True)
            while True:
                now = time.time()
                line = {"step": round(now - first), "time": now, "metrics": sample(devices)}
                with file.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                if last:
                    return
                last = stop.wait(every_seconds)

    thread = threading.Thread(target=work, name="system-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5)


def sample(devices: list[Any]) -> dict[str, float]:
    """One sample of the machine, and of this process with its children."""
    import psutil

    memory, ours = psutil.virtual_memory(), 0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            ours += process.memory_info().rss
    found = {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": (memory.total - memory.available) / 1e6,
        "system/system_memory_usage_percentage": memory.percent,
        "system/run_memory_usage_megabytes": ours / 1e6,
    }
    for number, device in enumerate(devices):
        found |= _gpu(f"system/gpu_{number}", device)
    return {name: round(float(value), 3) for name, value in found.items()}


def gpus() -> list[Any]:
    """NVML handles of the NVIDIA GPUs, if nvidia-ml-py and a driver are installed."""
    with contextlib.suppress(Exception):
        nvml = _nvml()
        nvml.nvmlInit()
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    return []


def visible_gpus() -> dict[str, str]:
    """The GPUs that this process may use, in order: machine-wide id -> name in CUDA_VISIBLE_DEVICES.

    Those in CUDA_VISIBLE_DEVICES if set, else all of the driver's; torch is not imported, since it would
    initialise CUDA. The machine-wide id is the UUID (jobs of a scheduler may each call theirs 0), or the
    listed name without NVML. `RecipeError` if there is a driver but neither a list nor NVML.
    """
    listed, uuids = os.environ.get("CUDA_VISIBLE_DEVICES"), [_nvml().nvmlDeviceGetUUID(one) for one in gpus()]
    if listed is None and not uuids and DRIVER.exists():
        raise RecipeError(
            "`gpus` requested, but the GPUs of this machine cannot be listed; run "
            "`pip install -e '.[scale]'` in the checkout, or set CUDA_VISIBLE_DEVICES"
        )
    names = map(str, range(len(uuids)))
    if listed is not None:  # up to the first that is none, as CUDA does
        stripped = (name.strip() for name in listed.split(","))
        names = itertools.takewhile(lambda name: name not in ("", "-1"), stripped)
    return {_uuid(name, uuids): name for name in names}


def gpu_names() -> list[str]:
    """Models of the NVIDIA GPUs."""
    return [_nvml().nvmlDeviceGetName(device) for device in gpus()]


def _nvml() -> Any:
    import pynvml

    return pynvml  # type checkers infer its C structures wrongly


def _uuid(name: str, uuids: Sequence[str]) -> str:
    """The UUID that CUDA resolves `name` (index or prefix) to; a MIG slice keeps its own name."""
    found = uuids[int(name) :][:1] if name.isdecimal() else [uuid for uuid in uuids if uuid.startswith(name)]
    return found[0] if len(found) == 1 else name


def _gpu(name: str, device: Any) -> dict[str, float]:
    """Metrics of a GPU. MIG slices have no utilisation, some boards no power meter."""
    nvml = _nvml()
    queries: dict[str, Callable[[], float]] = {
        "memory_usage_megabytes": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used / 1e6,
        "utilization_percentage": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu,
        "power_usage_watts": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
    }
    found = {}
    for what, look in queries.items():
        with contextlib.suppress(nvml.NVMLError):
            found[f"{name}_{what}"] = look()
    return found


def rebase_timestamps(file: Path, samples: str) -> str:
    """Samples of another machine, with steps relative to the start of the samples in `file`."""
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
