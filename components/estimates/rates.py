"""Throughput of a machine: tokens per second by kind of work, and seconds per optimiser step and model load;
measured, or computed from the device's stated figures.
"""

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
TRAINING_MFU, SCORING_MFU = 0.25, 0.18
"""Model FLOP/s utilisation, the share of the stated FLOP/s that training and scoring reach: measured on an
H100 (docs/scale.md).
"""
DECODING_MBU = {"torch": 0.14, "vllm": 0.6}
"""Memory bandwidth utilisation, the share of the stated bandwidth that decoding reaches, by engine: measured
there for torch, assumed for vLLM.
"""
LOAD_SECONDS = 60.0
"""Seconds of a model load where none is measured: assumed."""


@dataclass(frozen=True)
class Rates:
    """Throughput of a recipe's model on a profile. `learn`: tokens per second of forward and backward on all
    ranks, by adapter (`adapter_key`); `update`: seconds of clipping and AdamW per optimiser step, by adapter,
    which do not depend on the batch; `score` and `sample`: tokens per second of a stage's engines; `load`:
    seconds per model load; `source`: "measured", "stated", or why it was not measured. In a stage that
    trains, every rank samples and scores: `spread` times as many devices.
    """

    learn: Mapping[str, float]
    update: Mapping[str, float]
    score: float
    sample: float
    load: float
    source: str = "stated"
    spread: float = 1.0


def adapter_key(adapter: Mapping[str, Any]) -> str:
    """An adapter as text, its name first: "lora rank=16"."""
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
    engines (`engine_devices`). `length`: typical tokens of a text.
    """
    hardware = profile.hardware
    if hardware.tflops is None or hardware.bandwidth_gb is None:
        return None
    devices, flops = engine_devices(profile), hardware.tflops * 1e12  # per device and second
    bandwidth = hardware.bandwidth_gb * 1e9  # bytes per device and second
    learn, update = {}, {}
    for name, adapter in adapters(recipe).items():
        trained_parameters, layers = trained(shape, adapter)
        # gradients of activations in the layers above the lowest trained one, and of trained weights; frozen
        # layers below it need neither
        backward = 2 * shape.parameters * layers / shape.layers + 2 * trained_parameters
        forward = 2 * shape.parameters * (2 if profile.gradient_checkpointing else 1)
        learn[name] = hardware.devices * flops * TRAINING_MFU / (forward + backward)
        update[name] = UPDATE_BYTES * trained_parameters / (hardware.devices * bandwidth)
    rows = profile.max_num_seqs
    cached = rows * length * 2 * shape.layers * shape.key_value  # numbers in the KV cache
    step_bytes = sampling_bytes(profile) * (shape.parameters + cached)
    return Rates(
        learn=learn,
        update=update,
        score=devices * flops * SCORING_MFU / (2 * shape.parameters),
        sample=rows * devices * bandwidth * DECODING_MBU[profile.engine] / step_bytes,
        load=LOAD_SECONDS,
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
