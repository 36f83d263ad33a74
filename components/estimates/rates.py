"""Throughput of a machine in tokens per second: measured, or computed from the device's stated figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.components.estimates.memory import sampling_bytes, trained
from ratchet.components.estimates.shape import Shape
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile, engine_processes, gpus_per_engine
from ratchet.components.recipes.schema import Recipe

UPDATE_BYTES = 28
"""Bytes that AdamW moves per trained parameter and step: weight, gradient and two moments are read, all but
the gradient written.
"""
TRAINING, SCORING = 0.25, 0.18
"""Share of the stated FLOP/s that training and scoring reach: measured on an H100 (docs/scale.md)."""
DECODING = {"torch": 0.14, "vllm": 0.6}
"""Share of the stated memory bandwidth that decoding reaches: measured there, and assumed for vLLM."""


@dataclass(frozen=True)
class Rates:
    """Throughput in tokens per second. `learn`: forward and backward on all ranks, per adapter (see
    `adapter_key`); `update`: seconds of clipping and AdamW per optimiser step, which do not depend on the
    batch; `score` and `sample`: of a stage's engines. In a stage that trains, every rank samples and scores:
    `spread` times as many devices.
    """

    learn: Mapping[str, float]
    update: Mapping[str, float]
    score: float
    sample: float
    load: float  # seconds per model load
    source: str = "stated"  # or "measured", or why it was not measured
    spread: float = 1.0


def adapter_key(adapter: Mapping[str, Any]) -> str:
    return " ".join(
        f"{k}={v}" if k != "name" else str(v)
        for k, v in sorted(adapter.items(), key=lambda kv: (kv[0] != "name", kv[0]))
    )


def adapters(recipe: Recipe) -> dict[str, Mapping[str, Any]]:
    """The distinct adapters that this recipe trains, by `adapter_key`."""
    fits = [fit for one in sections(recipe) if (fit := getattr(one.section, "fit", None))]
    return {adapter_key(fit.adapter): fit.adapter for fit in fits}


def stated_rates(recipe: Recipe, profile: Profile, shape: Shape, *, length: float) -> Rates | None:
    """Throughput from the device's stated FLOP/s and bandwidth, if the profile has them. Training: 2 FLOP per
    parameter and token forward, 4 backward (2 for frozen weights), 2 more with gradient checkpointing, on
    all devices, which share AdamW's work at the stated bandwidth. Decoding is bandwidth-bound: each step
    reads all weights and the KV cache once for all rows. Scoring and decoding are on the devices of the
    engines (`engine_devices`).
    """
    hardware = profile.hardware
    if hardware.tflops is None or hardware.bandwidth_gb is None:
        return None
    devices, each = engine_devices(profile), hardware.tflops * 1e12
    work, moved = hardware.devices * each * TRAINING, hardware.devices * hardware.bandwidth_gb * 1e9
    learn, update = {}, {}
    for name, adapter in adapters(recipe).items():
        learns, layers = trained(shape, adapter)
        backward = 2 * shape.parameters * layers / shape.layers + 2 * learns
        learn[name] = work / (2 * shape.parameters * (2 if profile.gradient_checkpointing else 1) + backward)
        update[name] = UPDATE_BYTES * learns / moved
    rows = profile.max_num_seqs
    read = sampling_bytes(profile) * (shape.parameters + rows * length * 2 * shape.layers * shape.key_value)
    return Rates(
        learn,
        update,
        devices * each * SCORING / (2 * shape.parameters),
        rows * devices * hardware.bandwidth_gb * 1e9 * DECODING[profile.engine] / read,
        load=60.0,
        spread=hardware.devices / devices,
    )


def engine_devices(profile: Profile) -> float:
    """Devices that sample and score in a stage that does not train: those of its engine processes on all
    machines. A vLLM server is counted as all devices of a machine.
    """
    machine, options = profile.hardware.devices / profile.machines, plain(profile)
    if profile.engine == "vllm" and profile.vllm.server:
        return machine
    return profile.machines * min(machine, engine_processes(options) * gpus_per_engine(options))
