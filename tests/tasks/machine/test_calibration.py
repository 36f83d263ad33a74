"""Inputs of estimates from earlier runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import StageError
from ratchet.tasks.machine import calibration
from ratchet.tasks.machine.calibration import observed
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.child import PRELOAD


def opened(home: Path, seed: int, recipe: str = "online_dpo") -> Pipeline:
    pipeline = Pipeline.open(recipe, home=home, profile="test", overrides=[f"seed={seed}"])
    pipeline.begin()
    return pipeline


def publish(pipeline: Pipeline, stage: str, meta: dict[str, Any]) -> None:
    key = pipeline.stages[stage].key
    with pipeline.store.working(stage, key) as work:
        pipeline.store.publish(work, stage, key, "groups", [], meta)


def test_the_newest_run_of_the_recipe_says_what_it_sampled_and_kept(tmp_path: Path) -> None:
    """The pipeline's own stages count first, then runs from the newest to the oldest; others never."""
    assert observed(opened(tmp_path, 0)).answers == {}
    for seed, recipe, tokens in ((1, "online_dpo", 100), (2, "online_dpo", 200), (3, "raft", 900)):
        publish(opened(tmp_path, seed, recipe), "rollout_1", {"tokens": tokens, "counts": {"responses": 10}})
    publish(opened(tmp_path, 1), "select_1", {"counts": {"groups before": 9, "groups after best_worst": 5}})
    now, other = opened(tmp_path, 4), opened(tmp_path, 5)
    publish(now, "rollout_2", {"tokens": 300, "counts": {"responses": 10}})
    publish(other, "rollout_2", {"tokens": 700, "counts": {"responses": 10}})
    opened(tmp_path, 1)
    for pipeline in (other, opened(tmp_path, 3, "raft")):  # these begin last
        pipeline.begin()
    found = observed(now)
    assert found.answers == {"rollout_1": 10.0, "rollout_2": 30.0} and found.groups == {"select_1": 5}
    assert observed(opened(tmp_path, 2)).answers["rollout_1"] == 20.0


@pytest.mark.parametrize(
    ("code", "answer", "says"),
    [
        (1, None, "it ended with exit code 1"),
        (-9, '{"score": 1', "it was ended by signal 9"),
        (0, None, "without a whole answer"),
        (0, '{"score": 1', "without a whole answer"),
        (0, '{"score": 1}', "without a whole answer .*'sample'"),
    ],
)
def test_a_benchmark_that_fails_is_a_stage_error(
    code: int, answer: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> Any:
        if answer is not None:
            Path(command[-1]).write_text(answer)
        return subprocess.CompletedProcess(command, code, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(StageError, match=f"failed with m: .*{says}"):
        calibration._measured({"model": "m"})


def test_a_model_is_loaded_with_the_imports_of_a_stages_process(
    tiny_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    rates = {"learn": {"full": 1.0}, "update": {"full": 1.0}, "score": 1.0, "sample": 1.0, "load": 1.0}
    monkeypatch.setattr(calibration, "_measured", lambda request: asked.update(request) or rates)
    pipeline = Pipeline.open("sft", home=tiny_home, profile="test", overrides=["seed=77"])
    calibration.machine_rates(pipeline, tiny_home, length=1077)
    assert asked["imports"] == PRELOAD and "torch" in PRELOAD
    monkeypatch.undo()
    with pytest.raises(StageError, match="No module named 'no_such_module'"):
        calibration._measured({**asked, "imports": ["no_such_module"]})


@pytest.mark.parametrize("text", ["", '{"a": ', "[1]"])
def test_a_damaged_cache_is_measured_again(text: str, tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    assert calibration._read_cache(file) == {}
    file.write_text(text)
    assert calibration._read_cache(file) == {}
    file.write_text(json.dumps({"key": {}}))
    assert calibration._read_cache(file) == {"key": {}}
