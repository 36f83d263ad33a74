"""Checks before ranks train together: devices, and equal code on every machine."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

from ratchet.components.errors import ContractError
from ratchet.components.piece import ROOT
from ratchet.tasks.machine.provenance import packages


def missing_devices(each: int) -> str:
    """Error message if this machine has fewer GPUs than ranks; empty if it has enough, or none."""
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() else each
    return (
        f"one per GPU, but {socket.gethostname()} has {devices} GPUs for {each} ranks; use fewer ranks or "
        "more machines"
        if each > devices
        else ""
    )


def code_versions() -> dict[str, str]:
    """Versions that all ranks must share: this code, packages for computation and communication."""
    sources = hashlib.sha256()
    for file in sorted([*ROOT.rglob("*.py"), *Path(__file__).parents[1].rglob("*.py")]):
        sources.update(file.read_bytes())
    return {
        "ratchet": sources.hexdigest()[:12],
        **{name: packages().get(name, "none") for name in ("torch", "transformers", "peft", "deepspeed")},
    }


def require_same_code(machines: list[tuple[str, dict[str, str]]]) -> None:
    first, ours = machines[0]
    for host, theirs in machines:
        if other := next((name for name in ours if ours[name] != theirs[name]), None):
            raise ContractError(
                f"{other} is {theirs[other]} on {host} and {ours[other]} on {first}; all machines of a "
                "stage need the same version"
            )
