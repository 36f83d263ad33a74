"""Progress of a stage: counts written to a file by the process that does the work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.environments.sandbox import Verdict
from ratchet.components.pieces.rewards.unit_tests import unit_tests
from ratchet.components.stages import progress
from ratchet.components.types import Context, Group, Prompt, Trajectory
from ratchet.tasks.pipeline import Pipeline


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """All progress counts of this test."""
    lines: list[dict[str, Any]] = []
    write = progress._write

    def spy(count: Any) -> None:
        write(count)
        lines.append(json.loads(count.file.read_text()))

    monkeypatch.setattr(progress, "_write", spy)
    monkeypatch.setattr(progress, "EVERY", -1.0)
    return lines


def test_progress_counts_done_and_expected(tmp_path: Path, reports: list[dict[str, Any]]) -> None:
    file = tmp_path / "steps.json"
    file.write_text("of an attempt that was killed")
    with progress.report_progress(file):
        assert not file.exists()
        progress.advance()  # nothing is expected: a fit that probes its answers
        assert not file.exists()
        progress.expect("answers", 5)
        for number in (1, 3, 4):
            progress.advance(number)
        with progress.uncounted():
            progress.advance(2)  # verified a second time
        progress.expect("pairs", 0)  # none are to come: nothing is told of it
        progress.expect("texts")
        progress.advance(2)
    progress.expect("after the end", 3)
    progress.advance()
    assert [(line["step"], line["of"], line["unit"]) for line in reports] == [
        (0, 5, "answers"),
        (1, 5, "answers"),
        (4, 5, "answers"),
        (5, 5, "answers"),
        (0, None, "texts"),
        (2, None, "texts"),
    ]
    assert all(line["metrics"] == {} for line in reports), "a count is no metric"


def test_full_disk_does_not_stop_the_stage(tmp_path: Path) -> None:
    with progress.report_progress(tmp_path / "gone" / "steps.json"):
        progress.expect("answers", 1)
        progress.advance()
    assert not (tmp_path / "gone").exists(), "there was nowhere to write to"


def test_progress_is_written_rarely(
    tmp_path: Path, reports: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 3600.0)
    with progress.report_progress(tmp_path / "steps.json"):
        progress.expect("answers", 1000)
        for _ in range(1000):
            progress.advance()
    assert [line["step"] for line in reports] == [0, 1000]


def test_long_stages_report_progress_to_the_end(
    fresh_home: Callable[[str], Path], reports: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Curation, linear probe, the stages of two rounds and the evaluation each report progress in one unit up
    to the total.
    """
    profile = tmp_path / "small_batches.yaml"
    profile.write_text("{threads: 1, tokens_per_microbatch: 64, max_num_seqs: 64, launch: inline}")
    pipeline = Pipeline.open(
        "online_dpo",
        home=fresh_home("home"),
        profile=str(profile),
        overrides=[
            "seed=7",
            "reward.limit=48",
            "reward.limit_validation=16",
            "reward.certificate.min_accuracy=null",
            "reward.fit.epochs=0",
            "reward.linear_probe=true",
            "online.rounds=2",
            "online.prompts_per_round=6",
            "online.watch={kl_prompts: 5}",
            "online.annotate=[{name: rewards.length}, {name: rewards.reward_model}]",
            "evaluate.prompts=5",
            "evaluate.perplexity_rows=3",
            "evaluate.metrics=[{name: rewards.length}]",
        ],
    )
    expected: dict[str, tuple[str, int | None]] = {}
    for name in pipeline.stages:
        reports.clear()
        pipeline.make(name)
        if not reports:
            continue
        assert len({(line["unit"], line["of"]) for line in reports}) == 1, name
        done = [line["step"] for line in reports]
        assert done == sorted(done) and done[0] == 0 and done[-1] == reports[-1]["of"] and len(done) > 2, (
            name,
            done,
        )
        expected[name] = reports[-1]["unit"], reports[-1]["of"]
        assert not (pipeline.artifact(name).path / "steps.json").exists()
    rounds = {f"{stage}_{i}" for i in (1, 2) for stage in ("rollout", "annotate", "select")}
    assert set(expected) == {"drafts", "reward", "answers_base", "answers_policy", "evaluate", *rounds}, (
        "a fit logs its own steps"
    )
    answers = 6 * pipeline.recipe.online.rollout["responses_per_prompt"]  # type: ignore[union-attr]
    assert expected["rollout_1"] == ("answers", answers)
    assert expected["annotate_1"] == ("texts", 2 * answers), "for their length, and by the reward model"
    assert expected["annotate_2"] == ("texts", 2 * answers + 5), "and five of them for the KL"
    pairs = pipeline.artifact("select_2").meta["counts"]["groups after best_worst"]
    assert expected["select_2"] == ("texts", 2 * pairs) and 0 < pairs <= 6, "by the reference"
    answer_count = pipeline.artifact("evaluate").meta["counts"]["answers"]
    assert expected["answers_base"] == ("answers", 5)
    assert expected["evaluate"] == ("texts", 2 * answer_count + 3 * 2), (
        "scored, measured; people's replies by both arms"
    )


def test_unit_test_rewards_report_progress(
    tmp_path: Path, reports: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ratchet.components.pieces.rewards.unit_tests.execute", lambda *_, **__: Verdict(True)
    )
    prompt = Prompt("p", (), meta={"test_list": ["assert f() == 1"]})
    group = Group(
        prompt,
        tuple(Trajectory(({"role": "assistant", "content": f"def f(): return {i}"},)) for i in range(3)),
    )
    with progress.report_progress(tmp_path / "steps.json"):
        progress.expect("texts", 3)
        unit_tests([group], Context())
    assert [line["step"] for line in reports] == [0, 1, 2, 3]


def test_download_progress_is_measured_from_the_directory(
    tmp_path: Path, reports: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts only megabytes added since the start."""
    monkeypatch.setattr(progress, "POLL", 0.01)
    (tmp_path / "before").write_bytes(bytes(5 * 10**6))

    def wait(megabytes: int) -> None:
        for _ in range(500):
            if reports[-1]["step"] == megabytes:
                return
            time.sleep(0.01)
        raise AssertionError(f"{reports[-1]} where {megabytes} MB lie")

    with progress.report_progress(tmp_path / "steps.json"), progress.watch_download(tmp_path):
        (tmp_path / "deep").mkdir()
        for number in (1, 2):
            (tmp_path / "deep" / f"{number}").write_bytes(bytes(2 * 10**6))
            wait(2 * number)
        (tmp_path / "deep" / "1").unlink()
        (tmp_path / "deep" / "3").write_bytes(bytes(3 * 10**6))
        wait(5)
    assert [line["step"] for line in reports] == sorted(line["step"] for line in reports) and reports[-1][
        "of"
    ] is None


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_writes_progress(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.ranks, "rank", lambda: rank)
    (tmp_path / "steps.json").write_text("of another rank or attempt")
    with progress.report_progress(tmp_path / "steps.json"):
        assert (tmp_path / "steps.json").exists() == bool(rank)
        progress.expect("texts", 3)
    assert ('"of": 3' in (tmp_path / "steps.json").read_text()) == (rank == 0)
