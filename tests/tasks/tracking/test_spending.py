"""Resources spent by a run: hand-computed sums, no guesses, machine samples, a stage's own counters."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.recipes.profile import Hardware
from ratchet.tasks.machine.energy import gpu_kwh
from ratchet.tasks.machine.system import sample, sampled
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking.mlflow_text import lines
from ratchet.tasks.tracking.spending import describe_spending, spent_on

METAS = {
    "sft": {"seconds": 1800.0, "spent": {"cpu_seconds": 3600.0, "peak_gb": 2.0}},
    "evaluate": {
        "seconds": 1800.0,
        "spent": {"cpu_seconds": 1800.0, "peak_gb": 3.0},
        "win_rate_vs_sft.mean": 0.60,
    },
}


def test_spending_sums_and_cost_per_point() -> None:
    spent = spent_on(METAS, Hardware(price_per_hour=5.0, watts=200.0))
    assert spent == {
        "hours": 1.0,
        "cpu_hours": 1.5,
        "peak_gb": 3.0,
        "cost": 5.0,
        "energy_kwh": 0.2,
        "hours_per_point": 0.1,
        "cpu_hours_per_point": 0.15,
        "cost_per_point": 0.5,
        "energy_kwh_per_point": 0.02,
    }
    assert describe_spending(spent, "EUR") == (
        "1 hours, 1.5 processor hours, 5 EUR, 0.2 kWh at the stated watts, 3 GB at its peak; for each "
        "point of win rate 0.1 hours, 0.15 processor hours, 0.5 EUR, 0.02 kWh at the stated watts"
    )


def test_less_than_an_hour_is_in_minutes_or_seconds() -> None:
    assert describe_spending({"hours": 0.5, "cpu_hours": 0.005}, "EUR") == "30 minutes, 18 processor seconds"


def test_unknown_quantities_are_omitted() -> None:
    assert set(spent_on(METAS, Hardware())) == {
        "hours",
        "cpu_hours",
        "peak_gb",
        "hours_per_point",
        "cpu_hours_per_point",
    }
    old = {**METAS, "reward": {"seconds": 60.0}}
    assert "cpu_hours" not in spent_on(old, Hardware()), "a stage did not count: the sum would be too small"
    worse = {**METAS, "evaluate": {**METAS["evaluate"], "win_rate_vs_sft.mean": 0.45}}
    assert not [name for name in spent_on(worse, Hardware(price_per_hour=1.0)) if name.endswith("_per_point")]


def sampled_power(file: Path, *points: tuple[float, list[float | None]]) -> Path:
    """(time, watts of each GPU, None where it has no meter), as `sampled` writes them."""
    names = ("memory_usage_megabytes", "power_usage_watts")
    file.write_text(
        "".join(
            json.dumps(
                {
                    "step": round(when),
                    "time": when,
                    "metrics": {
                        "system/cpu_utilization_percentage": 5.0,
                        **{
                            f"system/gpu_{i}_{name}": 1.0 if name == names[0] else value
                            for i, value in enumerate(watts)
                            for name in names
                            if value is not None or name == names[0]
                        },
                    },
                }
            )
            + "\n"
            for when, watts in points
        )
    )
    return file


def test_sampled_power_is_integrated_by_hand(tmp_path: Path) -> None:
    """Two GPUs together: 200 W at 100 s, 600 W at 110 s and 120 s, 200 W at 130 s."""
    file = sampled_power(
        tmp_path / "system.jsonl", (100, [100, 100]), (110, [300, 300]), (120, [300, 300]), (130, [0, 200])
    )
    whole = 10 * (200 + 600) / 2 + 10 * 600 + 10 * (600 + 200) / 2
    assert gpu_kwh(file, 100, 130, 2)["gpu_kwh"] == pytest.approx(whole / 3.6e6)
    assert gpu_kwh(file, 105, 125, 2)["gpu_kwh"] == pytest.approx((5 * 500 + 10 * 600 + 5 * 500) / 3.6e6), (
        "400 W at both ends"
    )
    assert gpu_kwh(file, 112, 114, 2)["gpu_kwh"] == pytest.approx(2 * 600 / 3.6e6), (
        "a stage between two samples"
    )
    assert gpu_kwh(file, 120, 140, 2)["gpu_kwh"] == pytest.approx((10 * 400 + 10 * 200) / 3.6e6), (
        "nothing newer was sampled yet"
    )


def test_unsampled_power_is_not_estimated(tmp_path: Path) -> None:
    file = sampled_power(tmp_path / "system.jsonl", (100, [100]), (110, [100]), (500, [100]), (510, [100]))
    assert gpu_kwh(file, 100, 110, 1) and gpu_kwh(file, 500, 510, 1)
    assert gpu_kwh(file, 105, 505, 1) == gpu_kwh(file, 200, 300, 1) == {}, "the run was stopped in between"
    assert gpu_kwh(file, 100, 110, 2) == gpu_kwh(tmp_path / "none.jsonl", 100, 110, 1) == {}
    half = sampled_power(tmp_path / "half.jsonl", (100, [100, None]), (110, [100, None]))
    assert gpu_kwh(half, 100, 110, 2) == gpu_kwh(half, 100, 110, 1) == {}, "one has no meter"
    assert (
        gpu_kwh(sampled_power(tmp_path / "shared.jsonl", (100, [100, 90]), (110, [100, 90])), 100, 110, 1)
        == {}
    ), "which of two is ours?"


def test_sampled_energy_takes_precedence_over_stated_watts() -> None:
    metas = {
        name: {**meta, "spent": {**meta["spent"], "gpu_kwh": kwh}}
        for (name, meta), kwh in zip(METAS.items(), (0.3, 0.1), strict=True)
    }
    spent = spent_on(metas, Hardware(watts=200.0))
    assert spent["gpu_kwh"] == 0.4 and spent["gpu_kwh_per_point"] == 0.04 and "energy_kwh" not in spent
    assert "0.4 kWh of its GPUs as sampled" in describe_spending(
        spent, "EUR"
    ) and "0.04 kWh of its GPUs as sampled" in describe_spending(spent, "EUR")
    assert spent_on({**metas, "sft": METAS["sft"]}, Hardware(watts=200.0))["energy_kwh"] == 0.2, (
        "one stage was not sampled"
    )


def test_stage_metadata_has_its_gpu_energy(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonl"
    source.write_text('{"prompt": "a", "completion": "b"}\n')
    pipeline = Pipeline.open(
        "sft", home=tmp_path / "home", profile="test", overrides=[f"data.source=path:{source}"]
    )
    samples = pipeline.run.path / "tracking" / "system.jsonl"
    samples.parent.mkdir(parents=True)
    now = time.time()
    sampled_power(samples, *((now + 10 * i, [3600.0]) for i in range(-1, 30)))
    meta = pipeline.make("raw").meta
    assert (
        0 < meta["spent"]["gpu_kwh"] == pytest.approx(meta["seconds"] / 1000, abs=2e-4)
        and "cpu_seconds" in meta["spent"]
    )


def test_system_sampling_covers_the_run_and_resumes(tmp_path: Path) -> None:
    file = tmp_path / "tracking" / "system.jsonl"

    def sample_until(number: int) -> list[dict[str, Any]]:
        """The lines of the file once it has so many; a busy machine takes its time."""
        end = time.monotonic() + 60
        with sampled(file, every_seconds=0.1):
            while (not file.exists() or len(lines(file.read_bytes())) < number) and time.monotonic() < end:
                time.sleep(0.05)
        return lines(file.read_bytes())

    first = sample_until(3)
    assert len(first) >= 3 and all(
        0 < line["metrics"]["system/run_memory_usage_megabytes"] < 1e6 for line in first
    )
    shifted = [{**line, "time": line["time"] - 100} for line in first]
    file.write_text("".join(json.dumps(line) + "\n" for line in shifted))
    assert sample_until(len(first) + 1)[-1]["step"] >= 100, "steps began anew: MLflow would drop them"


def test_system_sample_takes_milliseconds() -> None:
    """Of one sample every 10 s; a bound a hundred times what a quiet machine takes."""
    sample([])
    began = time.process_time()
    for _ in range(20):
        sample([])
    assert (time.process_time() - began) / 20 < 0.1


def test_stage_metadata_has_cpu_time_and_peak_memory(tmp_path: Path) -> None:
    from ratchet.components.stages.run import as_request, execute

    source = tmp_path / "source.jsonl"
    source.write_text('{"prompt": "a", "completion": "b"}\n' * 1000)
    (tmp_path / "work" / "product").mkdir(parents=True)
    meta = execute(
        as_request("fetch_data", {"source": f"path:{source}", "sha256": None}, {}, tmp_path / "work")
    )
    assert 0 <= meta["spent"]["cpu_seconds"] < 5 and meta["spent"]["peak_gb"] == pytest.approx(
        _peak(), rel=0.5
    )


def _peak() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9
