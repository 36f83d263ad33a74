"""Resource use of a run: wall time, CPU time, memory, and cost and energy by the profile's price and watts.
Unknown values are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.recipes.profile import Hardware


def spent_on(metas: Sequence[Mapping[str, Any]], hardware: Hardware) -> dict[str, float]:
    """`hours`, `cpu_hours`, `peak_gb`, `gpu_gb` (largest peaks), `cost` and `energy_kwh` of stages with these
    `metas`, to four digits.
    """
    found = {"hours": sum(meta.get("seconds", 0.0) for meta in metas) / 3600}
    spent = [meta["spent"] for meta in metas if "spent" in meta]
    if spent and len(spent) == len(metas):  # only if known for all stages
        found["cpu_hours"] = sum(s["cpu_seconds"] for s in spent) / 3600
        found["peak_gb"] = max(s["peak_gb"] for s in spent)
        if on_gpu := [s["gpu_gb"] for s in spent if "gpu_gb" in s]:
            found["gpu_gb"] = max(on_gpu)
    if hardware.price_per_hour is not None:
        found["cost"] = found["hours"] * hardware.price_per_hour
    if hardware.watts is not None:
        found["energy_kwh"] = found["hours"] * hardware.watts / 1000
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def describe_spending(spent: Mapping[str, float], currency: str) -> str:
    """Text: `0.42 hours, 0.8 processor hours, 1.2 EUR, 3.3 GB at its peak`."""
    units = {
        "hours": "hours",
        "cpu_hours": "processor hours",
        "cost": currency,
        "energy_kwh": "kWh at the stated watts",
        "peak_gb": "GB at its peak",
        "gpu_gb": "GB of a GPU",
    }
    found = []
    for name, unit in units.items():
        value = spent.get(name)
        if value is not None and unit.endswith("hours") and value < 1:
            small, word = (value * 60, "minutes") if value >= 1 / 60 else (value * 3600, "seconds")
            found.append(f"{small:.2g} {unit.removesuffix('hours')}{word}")
        elif value is not None:
            found.append(f"{value:g} {unit}")
    return ", ".join(found)
