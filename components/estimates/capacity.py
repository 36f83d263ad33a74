"""Memory and disk check of a run against its profile."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import RecipeError
from ratchet.components.estimates.costs import Cost
from ratchet.components.estimates.memory import RESERVE, Parts
from ratchet.components.recipes.profile import Hardware, Profile


def check_memory(profile: Profile, costs: Sequence[Cost], here: tuple[float, float]) -> None:
    """`RecipeError` if a stage exceeds device or host memory, or the run exceeds the disk. It names the stage
    with the highest need and the option to change. `here`: (bytes of memory, bytes of free disk) of this
    machine, used where the profile states none.
    """
    hardware = profile.hardware
    device = hardware.memory_gb * 1e9 if hardware.memory_gb else here[0]
    host = hardware.host_memory_gb * 1e9 if hardware.host_memory_gb else here[0]
    worst = max(costs, key=lambda cost: cost.bytes)
    if worst.bytes > device * (1 - RESERVE):
        raise RecipeError(
            f"profile {profile.name!r} cannot run stage {worst.stage.name!r}: it needs {gb(worst.bytes)} on "
            f"{_one(hardware)} ({_spelt(worst.memory)}), which has {gb(device)} ({RESERVE:.0%} reserved); "
            f"{_advice(profile, worst)}"
        )
    beside = max(costs, key=lambda cost: cost.host)
    if beside.host > host * (1 - RESERVE):
        raise RecipeError(
            f"profile {profile.name!r} cannot run stage {beside.stage.name!r}: offloading needs "
            f"{gb(beside.host)} "
            f"of host memory, available are {gb(host)}; offload less or use more ranks"
        )
    disk = sum(cost.disk for cost in costs)
    if hardware.memory_gb is None and disk > here[1]:
        raise RecipeError(
            f"the outputs of this run need {gb(disk)} of disk, {gb(here[1])} are free; `ratchet gc` lists "
            "what can be deleted, "
            "or choose another --home"
        )


def gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"


def _one(hardware: Hardware) -> str:
    return f"one {hardware.device}" if hardware.devices > 1 or hardware.memory_gb else hardware.device


def _spelt(memory: Parts) -> str:
    return ", ".join(
        f"{name} {gb(size)}" for name, size in sorted(memory.items(), key=lambda kv: -kv[1]) if size >= 1e7
    )


def _advice(profile: Profile, cost: Cost) -> str:
    """Which option to lower, from the largest part of the memory."""
    most = max(
        (name for name in cost.memory if name != "process"), key=lambda name: cost.memory[name], default=""
    )
    ways = {
        "activations": f"lower tokens_per_microbatch (now {profile.tokens_per_microbatch}), or set "
        "gradient_checkpointing: true",
        "KV cache": f"lower max_num_seqs (now {profile.max_num_seqs}) or max_tokens of the answers",
    }
    return ways.get(
        most,
        "train fewer parameters (adapter: {name: lora} or {name: top_layers}), shard over more devices "
        "(zero_stage 3 with more ranks, as in profile node), or use a smaller model",
    )
