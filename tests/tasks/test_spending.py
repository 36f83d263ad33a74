"""What a run took: sums by hand, nothing guessed, samples of the machine, and a stage that counts its own."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from components.schema import Hardware
from tasks.journal import lines
from tasks.spending import said, spent_on
from tasks.system import sample, sampled

METAS = {"sft": {"seconds": 1800.0, "spent": {"cpu_seconds": 3600.0, "peak_gb": 2.0}},
         "evaluate": {"seconds": 1800.0, "spent": {"cpu_seconds": 1800.0, "peak_gb": 3.0}, "win_rate_vs_sft.mean": 0.60}}


def test_sums_and_what_a_point_costs() -> None:
    spent = spent_on(METAS, Hardware(price_per_hour=5.0, watts=200.0))
    assert spent == {"hours": 1.0, "cpu_hours": 1.5, "peak_gb": 3.0, "cost": 5.0, "energy_kwh": 0.2, "hours_per_point": 0.1,
                     "cpu_hours_per_point": 0.15, "cost_per_point": 0.5, "energy_kwh_per_point": 0.02}
    assert said(spent, "EUR") == ("1 hours, 1.5 processor hours, 5 EUR, 0.2 kWh, 3 GB at its peak; for each point of win rate "
                                  "0.1 hours, 0.15 processor hours, 0.5 EUR, 0.02 kWh")


def test_what_is_not_known_is_left_out() -> None:
    assert set(spent_on(METAS, Hardware())) == {"hours", "cpu_hours", "peak_gb", "hours_per_point", "cpu_hours_per_point"}
    old = {**METAS, "reward": {"seconds": 60.0}}
    assert "cpu_hours" not in spent_on(old, Hardware()), "a stage did not count: the sum would be too small"
    worse = {**METAS, "evaluate": {**METAS["evaluate"], "win_rate_vs_sft.mean": 0.45}}
    assert not [name for name in spent_on(worse, Hardware(price_per_hour=1.0)) if name.endswith("_per_point")]


def test_the_machine_is_sampled_until_the_run_ends_and_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "tracking" / "system.jsonl"
    with sampled(file, every_seconds=0.1):
        time.sleep(0.5)
    first = lines(file.read_bytes())
    assert len(first) >= 3 and all(0 < line["metrics"]["system/run_memory_usage_megabytes"] < 1e6 for line in first)
    shifted = [{**line, "time": line["time"] - 100} for line in first]
    file.write_text("".join(json.dumps(line) + "\n" for line in shifted))
    with sampled(file, every_seconds=0.1):
        time.sleep(0.3)
    assert lines(file.read_bytes())[-1]["step"] >= 100, "steps began anew: MLflow would drop them"


def test_a_sample_costs_next_to_nothing() -> None:
    """Of one sample every 10 s; a bound a hundred times what a quiet machine takes."""
    sample([])
    began = time.process_time()
    for _ in range(20):
        sample([])
    assert (time.process_time() - began) / 20 < 0.1


def test_a_stage_counts_its_processor_time_and_its_peak(tmp_path: Path) -> None:
    from components.run import as_request, execute

    source = tmp_path / "source.jsonl"
    source.write_text('{"prompt": "a", "completion": "b"}\n' * 1000)
    (tmp_path / "work" / "product").mkdir(parents=True)
    meta = execute(as_request("fetch_data", {"source": f"path:{source}", "sha256": None}, {}, tmp_path / "work"))
    assert 0 <= meta["spent"]["cpu_seconds"] < 5 and meta["spent"]["peak_gb"] == pytest.approx(_peak(), rel=0.5)


def _peak() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9
