"""The benchmark harness: equal work on both sides, wrong results are detected, ratios of adjacent runs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import child as measured
from benchmarks import evidence, gpu, growth, orchestration, ours, report
from benchmarks.compare import Result, agrees, child, compare, disagreements, runner
from benchmarks.inputs import collect
from benchmarks.works import TRAINING, WORKS, Peer, Work, in_precision
from ratchet.components.data.groups import write_groups
from ratchet.components.models.tiny import conversation
from ratchet.components.stages import shards
from ratchet.components.types import Group, Prompt, Trajectory
from ratchet.tasks.process.launch import ENVIRONMENT


@pytest.fixture(scope="module")
def inputs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The works' inputs on small talk of the tiny model's kind."""
    folder, dice = tmp_path_factory.mktemp("inputs"), random.Random(7)
    talks, prompts = [], []
    for number in range(200):
        messages = conversation(dice)
        first = next(i for i, m in enumerate(messages) if m["role"] == "assistant")
        prompt = Prompt(str(number), tuple(messages[:first]))
        talks.append(Group(prompt, (Trajectory(tuple(messages[first:])),)))
        prompts.append(Group(prompt, (Trajectory((messages[first],)),)))
    write_groups(folder / "sft.parquet", talks)
    write_groups(folder / "prompts.parquet", prompts)
    found = collect("tiny", tiny_model, folder, folder)
    (folder / "tiny.json").write_text(json.dumps(found))
    return {**found, "precision": "float32", "file": str(folder / "tiny.json")}


@pytest.fixture
def transformers_alone() -> dict[str, Any]:
    from benchmarks import peer_transformers

    return peer_transformers.WORKS


@pytest.mark.parametrize(("work", "setting"), [("sft", "default"), ("score", "16"), ("score_single", "one")])
def test_losses_equal_plain_transformers(
    work: str, setting: str, inputs: dict[str, Any], transformers_alone: dict[str, Any]
) -> None:
    mine, theirs = ours.WORKS[work](inputs, "default"), transformers_alone[work](inputs, setting)
    assert agrees(mine, theirs, TRAINING), disagreements(mine, theirs, TRAINING)
    assert mine["tokens"] == theirs["tokens"] and len(mine["seconds"]) == len(mine["tokens"])


def test_greedy_answers_are_the_same(inputs: dict[str, Any], transformers_alone: dict[str, Any]) -> None:
    few = {**inputs, "asked": inputs["asked"][:8]}
    mine, theirs = ours.WORKS["sample"](few, "default"), transformers_alone["sample"](few, "64")
    assert agrees(mine, theirs, {}), disagreements(mine, theirs, {})
    assert mine["checks"]["greedy_tokens"] and mine["tokens"][0] > 64


@pytest.mark.parametrize("wrong", [{"learning_rate": 5e-5}, {"max_grad_norm": 1e-6}, {"weight_decay": 10.0}])
def test_different_update_is_detected(
    wrong: dict[str, float], inputs: dict[str, Any], transformers_alone: dict[str, Any]
) -> None:
    mine, theirs = (
        ours.WORKS["sft"](inputs, "default"),
        transformers_alone["sft"]({**inputs, **wrong}, "default"),
    )
    assert not agrees(mine, theirs, TRAINING)


@pytest.mark.parametrize("work", ["dpo", "grpo", "reward"])
@pytest.mark.parametrize("setting", ["apart", "full_logits", "unpacked"])
def test_disabling_an_optimisation_changes_only_the_time(
    work: str, setting: str, inputs: dict[str, Any]
) -> None:
    few = {**inputs, "pairs": inputs["pairs"][:2], "groups": inputs["groups"][:2]}
    assert agrees(ours.WORKS[work](few, "default"), ours.WORKS[work](few, setting), TRAINING)


def test_optimisation_is_restored_after_its_measurement(inputs: dict[str, Any]) -> None:
    from ratchet.components.models import attention

    before = attention.SHARED
    with ours.switched_off("apart"):
        assert attention.SHARED > 1000
    assert before == attention.SHARED


def test_child_process_reports_its_own_peak_memory(inputs: dict[str, Any]) -> None:
    found = runner({}, Path(inputs["file"]), 1)("transformers", "score_single", "8")
    assert (
        found["peak_mib"] > 100
        and found["threads"] == 1
        and set(found["versions"]) == {"torch", "transformers"}
    )


@pytest.mark.parametrize(
    ("side", "setting", "given"),
    [
        ("ours", "default", {"GLIBC_TUNABLES", "GOMP_SPINCOUNT"}),
        ("ours", "memory_returned", {"GOMP_SPINCOUNT"}),
        ("ours", "awake", {"GLIBC_TUNABLES"}),
        ("trl", "default", set()),
    ],
)
def test_stage_environment_is_set_only_for_ratchet(
    side: str, setting: str, given: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("benchmarks.compare.child", lambda command, environment: dict(environment))
    assert ENVIRONMENT.keys() & runner({}, Path("inputs"), 1)(side, "sample", setting).keys() == given


def test_failed_process_is_reported() -> None:
    assert (
        "no such thing"
        in child([sys.executable, "-c", "raise SystemExit('no such thing')"], os.environ)["error"]
    )


def result(seconds: float, loss: float, peak: float) -> Result:
    return {"seconds": [seconds], "tokens": [100], "checks": {"loss": [loss]}, "peak_mib": peak}


def test_best_agreeing_setting_is_compared() -> None:
    calls: list[tuple[str, str]] = []
    answers = {
        ("ours", "default"): [result(1.0, 2.0, 300), result(2.0, 2.0, 330)],
        ("trl", "slow"): [result(4.0, 2.0, 600), result(6.0, 2.00001, 600)],
        ("trl", "slower"): [result(5.0, 2.0, 500)],
        ("trl", "wrong"): [result(0.5, 2.1, 100)],
        ("trl", "lean"): [result(8.0, 2.0, 310), result(8.0, 2.0, 310)],
    }

    def measure(side: str, work: str, setting: str) -> Result:
        calls.append((side, setting))
        return answers[side, setting].pop(0)

    peers = [Peer("trl", ("slow", "slower", "wrong"), 3.0, 0.6), Peer("trl", ("lean",))]
    rows, kept = compare(Work("sft", "a step", ()), peers, measure, repeats=2, say=lambda line: None)
    assert calls == [
        ("ours", "default"),
        *(("trl", s) for s in ("slow", "slower", "wrong", "lean")),
        ("ours", "default"),
        ("trl", "slow"),
        ("trl", "lean"),
    ]
    row, lean = rows
    assert row.setting == "slow" and (row.speed, row.speed_low, row.speed_high) == pytest.approx(
        (3.5, 3.0, 4.0)
    )
    assert (
        row.memory == pytest.approx((300 / 600 + 330 / 600) / 2)
        and row.verdict == "reached"
        and len(kept) == 8
    )
    assert lean.setting == "lean" and lean.speed == pytest.approx(6.0) and lean.verdict == ""


def test_disagreeing_comparison_is_invalid(tmp_path: Path) -> None:
    def measure(side: str, work: str, setting: str) -> Result:
        return result(1.0, 2.0, 300) if side == "ours" else result(9.0, 2.001, 900)

    rows, kept = compare(
        Work("sft", "a step", ()),
        [Peer("trl", ("padded",), 2.0, 0.6)],
        measure,
        repeats=1,
        say=lambda line: None,
    )
    report.write(tmp_path, "peers", rows, kept, "here")
    text = (tmp_path / "peers.md").read_text()
    assert rows[0].verdict == "invalid" and "9.00" not in text and "loss 5e-04 > 1e-04" in text
    assert (tmp_path / "peers.png").stat().st_size > 0 and (tmp_path / "peers.csv").read_text().count(
        "\n"
    ) == 2


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0, 2.0], [1.0]),
        ([], []),
        ([float("nan")], [float("nan")]),
        ([0.0, float("nan")], [0.0, 1.0]),
        ([0.0], [2e-4]),
    ],
)
def test_nan_and_missing_losses_disagree(a: list[float], b: list[float]) -> None:
    assert not agrees({"tokens": [1], "checks": {"loss": a}}, {"tokens": [1], "checks": {"loss": b}}, {})


def test_growth_varies_one_dimension_at_a_time() -> None:
    points = growth.points("smollm2")
    assert {p["axis"] for p in points} == {
        "tokens a row",
        "rows a step",
        "completions a prompt",
        "million parameters",
        "engine processes",
    }
    point = next(
        p for p in points if p["axis"] == "completions a prompt" and p["work"] == "group" and p["value"] == 4
    )
    found = growth.group({**point, "size": "1M", "length": 16, "learning_rate": 1e-5}, "default")
    assert found["tokens"] == [16 * 16] * 2 and len(found["seconds"]) == 2


def test_engine_processes_answer_the_same_rows_as_one() -> None:
    point = next(p for p in growth.points("tiny") if p["work"] == "sample_processes" and p["value"] == 2)
    point = {**point, "length": 8}
    one, two = (growth.sample_processes({**point, "value": n}, "default")["tokens"] for n in (1, 2))
    assert one == two and 0 < one[0] <= growth.PARTS * growth.ROWS * 4
    assert shards._engines == ((), None), "the next stage in this process has engines that are gone"


def test_shards_of_an_instant_call_are_computed_once() -> None:
    """By engine processes, in this one, and read from their files by a second attempt."""
    found = orchestration.shards_overhead(4, engines=2, answers=2, length=3)
    assert set(found) == {"in_process", "engines", "again"} and all(n > 0 for n in found.values())


def test_mixed_precision_compares_losses_loosely_and_greedy_answers_not_at_all() -> None:
    work = in_precision(WORKS["sft"], "bfloat16")
    a = {"tokens": [1], "checks": {"loss": [2.0], "greedy_tokens": [1, 2, 3]}}
    assert agrees(a, {"tokens": [1], "checks": {"loss": [2.02], "greedy_tokens": [1]}}, work.loose)
    assert not agrees(a, {"tokens": [1], "checks": {"loss": [2.1], "greedy_tokens": [1]}}, work.loose)
    assert in_precision(WORKS["sft"], "float32") is WORKS["sft"]


def test_timed_parts_wait_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are queued: a clock that does not wait for them measures the time to queue them."""
    import torch

    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    clock = measured.Clock()
    with clock:
        events.append("work")
    assert events == ["wait", "work", "wait"] and len(clock.seconds) == 1


def test_memory_on_a_gpu_is_that_of_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 3 << 20)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 5 << 20)
    assert measured.memory() == {"mib": 3.0, "peak_mib": 5.0}


def test_version_is_that_of_the_installed_alternative() -> None:
    assert measured.versions("not-installed|torch", "pytest").keys() == {"torch", "pytest"}


def test_gpu_script_says_what_is_missing_without_a_gpu(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert found.returncode == 1 and "nvidia-smi" in found.stderr and not (tmp_path / "out").exists()


def test_gpu_script_goes_on_after_a_part_that_failed(tmp_path: Path) -> None:
    """Each part is done; the report has the figures of those that worked and the logs of the others."""
    todo = gpu.parts(tmp_path, repeats=2)
    assert [part.command[2] for part in todo] == ["pytest", "benchmarks", "benchmarks", "ratchet.flows.cli"]
    table = tmp_path / "float32" / "smollm2" / "peers.md"
    table.parent.mkdir(parents=True)
    table.write_text("| figures |")
    calls = []

    def execute(part: gpu.Part, log: Path) -> int:
        calls.append(part.name)
        log.write_text("CUDA out of memory\n")
        return 0 if part in todo[:2] else 9

    failed = gpu.measure(todo, tmp_path, "one GPU", execute)
    text = (tmp_path / gpu.REPORT).read_text()
    assert calls == [part.name for part in todo] and failed == calls[2:]
    assert text.startswith("# On one GPU") and text.count("| figures |") == 1
    assert text.count("CUDA out of memory") == 2 and text.count("exit code 9") == 2


def test_gpu_script_reports_the_stages_and_gates_of_the_run() -> None:
    found = {
        "run": "instruct-1",
        "state": "finished",
        "champion": False,
        "stages": [{"name": "sft", "meta": {"seconds": 12.5}}, {"name": "evaluate", "meta": {}}],
        "gates": [{"name": "variety", "passed": False, "why": "0.7 < 0.75"}],
    }
    text = gpu.table(found)
    assert "instruct-1: finished, champion: no" in text and "| sft | 12.5 |" in text
    assert "| variety | no | 0.7 < 0.75 |" in text


def test_evidence_table_has_t_intervals_over_seeds_and_prompts() -> None:
    """Two seeds, 40 and 60 % on every prompt: mean 50, standard error 10 points, one degree of freedom,
    t = 12.706.
    """
    values = {
        "base": np.zeros((2, 4)),
        "SFT": np.full((2, 4), 0.1),
        "instruct": np.array([[0.4] * 4, [0.6] * 4]),
    }
    lines = evidence.table(values, np.array(["seen", "seen", "new_wording", "new_family"])).splitlines()
    assert lines[4].startswith("| instruct | 50.0 [-77.1, 177.1] |")
    assert lines[6].startswith("| **instruct − SFT**, points | +40.0 [-87.1, +167.1] |")
