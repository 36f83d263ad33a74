"""How far a stage is: counted by what does the work, in a file that only those who wait read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components import progress
from tasks.pipeline import Pipeline


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every count of this test, as it is written."""
    lines: list[dict[str, Any]] = []
    write = progress._write

    def spy(count: Any) -> None:
        write(count)
        lines.append(json.loads(count.file.read_text()))

    monkeypatch.setattr(progress, "_write", spy)
    monkeypatch.setattr(progress, "EVERY", -1.0)
    return lines


def test_what_is_done_of_what_is_expected(tmp_path: Path, told: list[dict[str, Any]]) -> None:
    file = tmp_path / "steps.json"
    file.write_text("of an attempt that was killed")
    with progress.told_in(file):
        assert not file.exists()
        progress.advance()  # nothing is expected: a fit that probes its answers
        assert not file.exists()
        progress.expect("answers", 5)
        for number in (1, 3, 4):
            progress.advance(number)
        progress.expect("texts")
        progress.advance(2)
    progress.expect("after the end", 3)
    progress.advance()
    assert [(line["step"], line["of"], line["unit"]) for line in told] == [
        (0, 5, "answers"), (1, 5, "answers"), (4, 5, "answers"), (5, 5, "answers"), (0, None, "texts"), (2, None, "texts")]
    assert all(line["metrics"] == {} for line in told), "a count is no metric"


def test_a_disk_that_is_full_stops_nothing(tmp_path: Path) -> None:
    with progress.told_in(tmp_path / "gone" / "steps.json"):
        progress.expect("answers", 1)
        progress.advance()
    assert not (tmp_path / "gone").exists(), "there was nowhere to write to"


def test_few_writes(tmp_path: Path, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 3600.0)
    with progress.told_in(tmp_path / "steps.json"):
        progress.expect("answers", 1000)
        for _ in range(1000):
            progress.advance()
    assert [line["step"] for line in told] == [0, 1000]


def test_what_took_minutes_in_silence_counts_to_its_end(fresh_home: Callable[[str], Path], told: list[dict[str, Any]]) -> None:
    """Curation, the linear probe, a rollout and the evaluation: each counts up, one unit, and does all that it expected."""
    pipeline = Pipeline.open("online_dpo", home=fresh_home("home"), profile="test", overrides=[
        "seed=7", "reward.limit=48", "reward.limit_validation=16", "reward.certificate.min_accuracy=0.0", "reward.fit.epochs=0",
        "reward.linear_probe=true", "online.rounds=1", "online.prompts_per_round=6", "evaluate.prompts=5", "evaluate.perplexity_rows=3"])
    expected: dict[str, tuple[str, int | None]] = {}
    for name, stage in pipeline.stages.items():
        told.clear()
        pipeline.make(name)
        if not told:
            continue
        assert len({(line["unit"], line["of"]) for line in told}) == 1, name
        done = [line["step"] for line in told]
        assert done == sorted(done) and done[0] == 0 and done[-1] == told[-1]["of"] and len(done) > 2, (name, done)
        expected[stage.does] = told[-1]["unit"], told[-1]["of"]
        assert not (pipeline.artifact(name).path / "steps.json").exists()
    answers = 6 * pipeline.recipe.online.rollout["responses_per_prompt"]  # type: ignore[union-attr]
    assert expected["rollout"] == ("answers", answers)
    assert set(expected) == {"curate", "reward", "rollout", "evaluate"}, "a fit logs its own steps"
    said = pipeline.artifact("evaluate").meta["counts"]["answers"]
    assert expected["evaluate"] == ("texts", said + 3 * 2 + said), "sampled; people's replies by both arms; scored by the reward model"
