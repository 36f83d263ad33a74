"""Alerts of tripped health rules and failed gates: emitted once, by the run that found them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.components.errors import HealthError, StageError, TrainingError
from ratchet.components.evaluation.gates import check_gates
from ratchet.components.recipes.plan import Stage
from ratchet.components.types import Artifact
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking import alerts, watchers
from ratchet.tasks.tracking.alerts import HEALTH, AlertWatcher

ANNOTATE = Stage("annotate_2", "annotate", "groups", {}, round=2)
TRIPPED = {
    "verdict": "roll_back",
    "verdicts": [
        "entropy is 0.10 nats a token; at least 0.3 allowed",
        "80% of the answers were cut; at most 50% allowed",
    ],
}
STOPPED = (
    "round 2 was stopped by a health rule: KL to the initial policy is 41.00 nats a sequence; at "
    "most 40 allowed"
)
GATES = {"win_rate": {"over": 0.5}, "proxy_over_gold": {"below": 0.25}}


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(alerts, "emit_alert", lambda *what: found.append(what))
    return found


@pytest.fixture
def alarm() -> AlertWatcher:
    return AlertWatcher(
        SimpleNamespace(run=SimpleNamespace(name="toy-1"), recipe=SimpleNamespace(name="toy"))
    )  # type: ignore[arg-type]


def artifact_with(meta: dict[str, Any]) -> Artifact:
    return Artifact("groups", Path("nowhere"), "k" * 64, (), meta)


def examined(folder: Path, gates: dict[str, Any], **metrics: float) -> tuple[Stage, Artifact]:
    (folder / "results.json").write_text(json.dumps({"verdict": check_gates(metrics, gates)}))
    return Stage("evaluate", "evaluate", "report", {}), Artifact(
        "report", folder, "k" * 64, (), {"passed": False}
    )


def test_tripped_health_rule_emits_an_alert(alarm: AlertWatcher, emitted: list[Any]) -> None:
    for action in ("warn", "roll_back"):
        alarm.finished(ANNOTATE, artifact_with({**TRIPPED, "verdict": action}), reused=False, seconds=1.0)
        event, run, message, more = emitted.pop()
        assert (event, run) == (HEALTH, "toy-1") and more == {
            "recipe": "toy",
            "stage": "annotate_2",
            "found": TRIPPED["verdicts"],
        }
        assert (
            message
            == f"toy-1: {ANNOTATE.title}: health rules tripped ({action}): {'; '.join(TRIPPED['verdicts'])}"
        )
    alarm.finished(ANNOTATE, artifact_with({"verdict": "ok", "verdicts": []}), reused=False, seconds=1.0)
    alarm.finished(
        ANNOTATE, artifact_with(TRIPPED), reused=True, seconds=0.0
    )  # the run that made it has emitted the alert
    assert not emitted


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (HealthError(STOPPED), True),
        (
            StageError(f"stage 'annotate_2' on one_stage/x: Failed: HealthError: {STOPPED}"),
            True,
        ),  # made by another worker
        (StageError("stage 'annotate' was killed by SIGKILL"), False),
        (TrainingError("the loss is nan"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_health_stop_emits_an_alert_and_other_failures_do_not(
    error: BaseException, expected: bool, alarm: AlertWatcher, emitted: list[Any]
) -> None:
    alarm.failed(ANNOTATE, error)
    assert [(event, STOPPED in message) for event, _, message, _ in emitted] == [(HEALTH, True)] * expected


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({"win_rate": 0.7, "proxy_over_gold": 0.1}, ""),
        (
            {"win_rate": 0.7, "proxy_over_gold": 0.31},
            "proxy_over_gold: failed, its value 0.31 is not below 0.25",
        ),
        (
            {"win_rate": 0.4, "proxy_over_gold": 0.31},
            "win_rate: failed, its value 0.4 is not over 0.5; proxy_over_gold: failed, its value 0.31 is "
            "not below 0.25",
        ),
        ({"win_rate": 0.7}, "proxy_over_gold: failed, "),
    ],
)
def test_failed_gates_emit_an_alert(
    metrics: dict[str, float], text: str, alarm: AlertWatcher, emitted: list[Any], tmp_path: Path
) -> None:
    alarm.finished(*examined(tmp_path, GATES, **metrics), reused=False, seconds=1.0)
    assert [message.startswith(f"toy-1: evaluate: gates failed: {text}") for _, _, message, _ in emitted] == [
        True
    ] * bool(text)


def test_recipe_without_gates_emits_no_gate_alert(
    alarm: AlertWatcher, emitted: list[Any], tmp_path: Path
) -> None:
    alarm.finished(*examined(tmp_path, {}), reused=False, seconds=1.0)
    assert not emitted


def test_every_pipeline_has_an_alarm_watcher(
    emitted: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        watchers, "BackgroundUploader", lambda *_: SimpleNamespace(start=lambda: None, close=lambda: True)
    )
    pipeline = Pipeline.open("raft", home=tmp_path, profile="test")
    with pytest.raises(HealthError), watchers.watched(pipeline):
        pipeline._notify("failed", pipeline.stages["annotate_1"], error := HealthError(STOPPED))
        raise error
    assert [(event, run) for event, run, _, _ in emitted] == [(HEALTH, pipeline.run.name)]
