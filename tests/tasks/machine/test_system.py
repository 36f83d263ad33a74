"""GPU metrics through NVML (pynvml)."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.tasks.machine import system


class NVMLError(Exception):
    pass


def refuse(*_: Any) -> Any:
    raise NVMLError("Not Supported")


def binding(**calls: Any) -> SimpleNamespace:
    """Fake `pynvml` with two GPUs, in NVIDIA's units: bytes, percent, milliwatts."""
    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda i: ("gpu", i),
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(
            total=80_000_000_000, free=50_000_000_000, used=30_000_000_000 + gpu[1]
        ),
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=90 + gpu[1], memory=40),
        "nvmlDeviceGetPowerUsage": lambda gpu: 650_500 + 1000 * gpu[1],
    }
    return SimpleNamespace(NVMLError=NVMLError, **{**functions, **calls})


def gpu_metrics(monkeypatch: pytest.MonkeyPatch, pynvml: Any) -> dict[str, float]:
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    found = system.sample(system.gpus())
    assert found["system/system_memory_usage_megabytes"] > 0
    return {
        name.removeprefix("system/gpu_"): value
        for name, value in found.items()
        if name.startswith("system/gpu_")
    }


def test_gpu_metrics_are_memory_utilisation_and_power(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_metrics(monkeypatch, binding()) == {
        "0_memory_usage_megabytes": 30_000.0,
        "0_utilization_percentage": 90.0,
        "0_power_usage_watts": 650.5,
        "1_memory_usage_megabytes": 30_000.0,
        "1_utilization_percentage": 91.0,
        "1_power_usage_watts": 651.5,
    }


def test_missing_gpu_metric_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MIG slice has no utilisation and some boards no power meter; the sampling thread must continue."""
    metrics = gpu_metrics(monkeypatch, binding(nvmlDeviceGetUtilizationRates=refuse))
    assert {name[2:] for name in metrics} == {"memory_usage_megabytes", "power_usage_watts"} and len(
        metrics
    ) == 4


@pytest.mark.parametrize("pynvml", [None, binding(nvmlInit=refuse)], ids=["no binding", "no driver"])
def test_system_metrics_without_a_gpu(monkeypatch: pytest.MonkeyPatch, pynvml: Any) -> None:
    assert gpu_metrics(monkeypatch, pynvml) == {}


def test_installed_nvml_has_the_functions_used() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name, call in vars(binding()).items():
        real = getattr(pynvml, name)
        assert callable(real) and (
            name == "NVMLError" or real.__code__.co_argcount >= call.__code__.co_argcount
        )
