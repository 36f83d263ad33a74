"""Memory and disk check of a run against its profile."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import RecipeError
from ratchet.components.estimates.cost import Cost
from ratchet.components.estimates.memory import RESERVE, Parts
from ratchet.components.recipes.profile import Hardware, Profile


def check_capacity(profile: Profile, costs: Sequence[Cost], machine: tuple[float, float]) -> None:
    """`RecipeError` if a stage exceeds device or host memory, or the run exceeds the disk. It names the stage
    with the highest need and the option to change. `machine`: (bytes of memory, bytes of free disk) of this
    machine; its memory counts where the profile states none, its disk only for profiles without `memory_gb`,
    which run here.
    """
    hardware = profile.hardware
    device = hardware.memory_gb * 1e9 if hardware.memory_gb else machine[0]  # without: the CPU's
    host = hardware.host_memory_gb * 1e9 if hardware.host_memory_gb else machine[0]
    worst = max(costs, key=lambda cost: cost.bytes)
    if worst.bytes > device * (1 - RESERVE):
        raise RecipeError(
            f"profile {profile.name!r} cannot run stage {worst.stage.name!r}: it needs {gb(worst.bytes)} on "
            f"{_device_name(hardware)} ({_breakdown(worst.memory)}), which has {gb(device)} ({RESERVE:.0%} "
            f"reserved); "
            f"{_advice(profile, worst, device * (1 - RESERVE))}"
        )
    largest = max(costs, key=lambda cost: cost.host)
    if largest.host > host * (1 - RESERVE):
        raise RecipeError(
            f"profile {profile.name!r} cannot run stage {largest.stage.name!r}: loading and offloading need "
            f"{gb(largest.host)} of host memory, available are {gb(host)}; offload less, use fewer ranks "
            "on a machine, or a smaller model"
        )
    disk = sum(cost.disk for cost in costs)
    if hardware.memory_gb is None and disk > machine[1]:
        raise RecipeError(
            f"the outputs of this run need {gb(disk)} of disk, {gb(machine[1])} are free; `ratchet gc` lists "
            "what can be deleted, "
            "or choose another --home"
        )


def gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"


def _device_name(hardware: Hardware) -> str:
    return f"one {hardware.device}" if hardware.devices > 1 or hardware.memory_gb else hardware.device


def _breakdown(memory: Parts) -> str:
    return ", ".join(
        f"{name} {gb(size)}" for name, size in sorted(memory.items(), key=lambda kv: -kv[1]) if size >= 1e7
    )


def _advice(profile: Profile, cost: Cost, room: float) -> str:
    """Which option to change, from the largest part of the memory. Numbers of tokens are of use only if the
    other parts fit into `room` bytes.
    """
    most = max(
        (name for name in cost.memory if name != "process"), key=lambda name: cost.memory[name], default=""
    )
    if cost.bytes - cost.memory.get(most, 0.0) > room:
        most = ""
    advice = {
        "activations": f"lower tokens_per_microbatch (now {profile.tokens_per_microbatch}), or set "
        "gradient_checkpointing: true",
        "KV cache": f"lower max_num_seqs (now {profile.max_num_seqs}) or max_tokens of the answers",
    }
    trains, samples = (
        "train fewer parameters (adapter: {name: lora} or {name: top_layers}), shard over more devices "
        "(zero_stage 3 with more ranks, as in profile node), or use a smaller model",
        "use a smaller model, set precision: bfloat16, or shard over more devices (engine vllm with "
        "tensor_parallel, as in profile node)",
    )
    return advice.get(most, trains if "gradients" in cost.memory else samples)
