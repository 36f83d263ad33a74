"""Resource use of a run: wall time, CPU time, memory, cost by the profile's price, energy (sampled GPU power,
else the profile's watts), and each per point of win rate over SFT. Unknown values are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ratchet.components.recipes.profile import Hardware

if TYPE_CHECKING:
    from ratchet.tasks.pipeline import Pipeline

GAIN = "win_rate_vs_sft.mean"  # by the gold measure; 0.5 means no gain


def spending(pipeline: Pipeline) -> dict[str, float]:
    """Sums over all finished stages of the run, including reused ones: the cost of the model."""
    metas = {s.stage.name: s.artifact.meta for s in pipeline.status() if s.artifact is not None}
    return spent_on(metas, pipeline.profile.hardware)


def spent_on(metas: Mapping[str, Mapping[str, Any]], hardware: Hardware) -> dict[str, float]:
    """`hours`, `cpu_hours`, `peak_gb`, `cost`, `gpu_kwh` (sampled) or `energy_kwh` (from stated watts), and
    `..._per_point` if the evaluation shows a gain.
    """
    hours = sum(meta.get("seconds", 0.0) for meta in metas.values()) / 3600
    spent = [meta["spent"] for meta in metas.values() if "spent" in meta]
    found = {"hours": hours}
    if spent and len(spent) == len(metas):  # only if known for all stages
        found |= {
            "cpu_hours": sum(s["cpu_seconds"] for s in spent) / 3600,
            "peak_gb": max(s["peak_gb"] for s in spent),
        }
    if hardware.price_per_hour is not None:
        found["cost"] = hours * hardware.price_per_hour
    if spent and len(spent) == len(metas) and all("gpu_kwh" in s for s in spent):
        found["gpu_kwh"] = sum(s["gpu_kwh"] for s in spent)
    elif hardware.watts is not None:
        found["energy_kwh"] = hours * hardware.watts / 1000
    points = 100 * (metas.get("evaluate", {}).get(GAIN, 0.5) - 0.5)
    if points > 0:
        found |= {
            f"{name}_per_point": found[name] / points
            for name in ("hours", "cpu_hours", "cost", "gpu_kwh", "energy_kwh")
            if name in found
        }
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def describe_spending(spent: Mapping[str, float], currency: str) -> str:
    """Text: `0.42 hours, 0.8 processor hours, 1.2 EUR, 3.3 GB at its peak; for each point of win rate 0.1
    EUR`.
    """
    units = {
        "hours": "hours",
        "cpu_hours": "processor hours",
        "cost": currency,
        "gpu_kwh": "kWh of its GPUs as sampled",
        "energy_kwh": "kWh at the stated watts",
    }
    whole = [_amount(spent[name], unit) for name, unit in units.items() if name in spent]
    whole += [f"{spent['peak_gb']:g} GB at its peak"] if "peak_gb" in spent else []
    each = [
        f"{spent[f'{name}_per_point']:g} {unit}"
        for name, unit in units.items()
        if f"{name}_per_point" in spent
    ]
    return ", ".join(whole) + (f"; for each point of win rate {', '.join(each)}" if each else "")


def _amount(value: float, unit: str) -> str:
    """Convert hours below one to minutes or seconds."""
    if not unit.endswith("hours") or value >= 1:
        return f"{value:g} {unit}"
    small, word = (value * 60, "minutes") if value >= 1 / 60 else (value * 3600, "seconds")
    return f"{small:.2g} {unit.removesuffix('hours')}{word}"
