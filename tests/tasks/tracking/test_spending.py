"""Resources spent by a run: hand-computed sums, no guesses, machine samples, a stage's own counters."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.recipes.profile import Hardware
from ratchet.tasks.machine.system import sample, sampled
from ratchet.tasks.tracking.spending import describe_spending, spent_on
from ratchet.tasks.tracking.upload import lines

METAS = [
    {"seconds": 1800.0, "spent": {"cpu_seconds": 3600.0, "peak_gb": 2.0}},
    {"seconds": 1800.0, "spent": {"cpu_seconds": 1800.0, "peak_gb": 3.0}},
]


def test_spending_is_summed_over_stages() -> None:
    spent = spent_on(METAS, Hardware(price_per_hour=5.0, watts=200.0))
    assert spent == {
        "hours": 1.0,
        "cpu_hours": 1.5,
        "peak_gb": 3.0,
        "cost": 5.0,
        "energy_kwh": 0.2,
    }
    assert describe_spending(spent, "EUR") == (
        "1 hours, 1.5 processor hours, 5 EUR, 0.2 kWh at the stated watts, 3 GB at its peak"
    )


def test_less_than_an_hour_is_in_minutes_or_seconds() -> None:
    assert describe_spending({"hours": 0.5, "cpu_hours": 0.005}, "EUR") == "30 minutes, 18 processor seconds"


def test_unknown_quantities_are_omitted() -> None:
    assert set(spent_on(METAS, Hardware())) == {
        "hours",
        "cpu_hours",
        "peak_gb",
    }
    old = [*METAS, {"seconds": 60.0}]
    assert "cpu_hours" not in spent_on(old, Hardware()), "a stage did not count: the sum would be too small"


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
