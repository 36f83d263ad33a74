"""Pipeline watchers and the artifacts on the Prefect page."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from prefect.client.schemas.actions import ArtifactCreate

from ratchet.components.recipes.plan import Stage
from ratchet.components.types import Artifact
from ratchet.tasks.pipeline import Pipeline, _follow
from ratchet.tasks.tracking.outcome import stage_metrics
from ratchet.tasks.tracking.prefect_page import AWAY_SECONDS, PrefectPage
from ratchet.tasks.tracking.upload import BackgroundUploader
from ratchet.tasks.tracking.watchers import watched

KINDS = ("link", "markdown", "table")


@pytest.fixture
def prefect_artifacts(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Artifacts on the Prefect page by kind and key; for a progress artifact, the shares shown."""
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        monkeypatch.setattr(
            f"prefect.artifacts.create_{kind}_artifact",
            lambda kind=kind, **given: found.setdefault(f"{kind} {given['key']}", given),
        )

    def begin(progress: float, key: str, description: str) -> str:
        found[key] = {"description": description, "shares": [progress]}
        return key

    monkeypatch.setattr("prefect.artifacts.create_progress_artifact", begin)
    monkeypatch.setattr(
        "prefect.artifacts.update_progress_artifact",
        lambda artifact_id, progress: found[artifact_id]["shares"].append(progress),
    )
    return found


def evaluated(path: Path) -> tuple[Stage, Artifact]:
    path.mkdir(parents=True, exist_ok=True)
    (path / "report.html").write_text("")
    return Stage("evaluate", "evaluate", "report", {}, key="k" * 64), Artifact(
        "report", path, "k" * 64, (), {"win_rate": 0.684}
    )


def test_finished_stage_gets_a_table_and_the_report_path(
    tmp_path: Path, prefect_artifacts: dict[str, dict[str, Any]]
) -> None:
    PrefectPage().finished(*evaluated(tmp_path), reused=False, seconds=3.0)
    assert set(prefect_artifacts) == {"table result-evaluate", "markdown report"}
    assert {"number": "win_rate", "value": "0.684"} in prefect_artifacts["table result-evaluate"]["table"]
    assert str(tmp_path / "report.html") in prefect_artifacts["markdown report"]["markdown"]


def test_the_flow_run_gets_the_run_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    named: list[tuple[str, str]] = []
    client = SimpleNamespace(update_flow_run=lambda number, name: named.append((number, name)))
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: nullcontext(client))
    monkeypatch.setattr("prefect.runtime.flow_run", SimpleNamespace(id="number"))
    PrefectPage().begin("sft-1a2b3c4d")
    assert named == [("number", "sft-1a2b3c4d")]


def test_artifact_keys_are_valid_in_prefect(
    tmp_path: Path, prefect_artifacts: dict[str, dict[str, Any]]
) -> None:
    _, artifact = evaluated(tmp_path)
    stage = Stage("answers_best_8", "answers", "groups", {}, key="k" * 64)
    PrefectPage().finished(stage, artifact, reused=False, seconds=3.0)
    keys = {key.partition(" ")[2] for key in prefect_artifacts}
    assert {ArtifactCreate(key=key).key for key in keys} == keys and "result-answers-best-8" in keys


def test_unreachable_prefect_server_is_retried_rarely(
    tmp_path: Path, prefect_artifacts: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's client waits a minute before it fails: a run of twenty stages would lose most of an hour."""
    calls, now = [], [1000.0]

    def away(**given: Any) -> None:
        calls.append(given["key"])
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(
        time, "monotonic", lambda: now[0]
    )  # to the end: the real clock may be smaller, seconds after a boot
    page, (stage, artifact) = PrefectPage(), evaluated(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("prefect.artifacts.create_table_artifact", away)
        with pytest.raises(httpx.ConnectError):  # the pipeline logs it
            page.finished(stage, artifact, reused=False, seconds=3.0)
        page.finished(stage, artifact, reused=False, seconds=3.0)
        page.failed(stage, ValueError())
        assert len(calls) == 1 and not prefect_artifacts
        now[0] += AWAY_SECONDS
        with pytest.raises(httpx.ConnectError):
            page.finished(stage, artifact, reused=False, seconds=3.0)
        assert len(calls) == 2
    now[0] += AWAY_SECONDS
    page.finished(stage, artifact, reused=False, seconds=3.0)
    assert "table result-evaluate" in prefect_artifacts, "it is back"


def test_report_is_linked_with_an_http_address(
    tmp_path: Path, prefect_artifacts: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page served over http may not open file://, and a server elsewhere has no such file: MLflow's page of
    the artifact it is.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@mlflow.team/base/")
    tracking = BackgroundUploader(tmp_path / "run", tmp_path)
    tracking.id = "r1"
    tracking.uploader = SimpleNamespace(
        link=lambda name: f"#/experiments/7/runs/r1/artifacts/{name}?workflowType=machine_learning"
    )
    PrefectPage(tracking).finished(*evaluated(tmp_path / "made"), reused=False, seconds=3.0)
    link = prefect_artifacts["link report"]
    assert (
        link["link"]
        == "https://mlflow.team/base/#/experiments/7/runs/r1/artifacts/report.html?workflowType=machine_learning"
    ), "and no password on a page"
    assert str(tmp_path / "made" / "report.html") in link["description"] and "file://" not in str(
        prefect_artifacts
    )
    assert "markdown report" not in prefect_artifacts


def test_progress_artifact_ends_at_100_percent(
    tmp_path: Path, prefect_artifacts: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    page, stage = PrefectPage(), Stage("optimise_1", "optimise", "weights", {})
    for seconds in (0.0, 1.0):  # a short stage shows none, however long the one before it took
        page.started(stage, tmp_path)
        now[0] += seconds
        page.progressed(stage, {"step": 1, "of": 8, "metrics": {}})
        page.finished(stage, Artifact("weights", tmp_path, "k"), reused=False, seconds=seconds)
    assert "progress-optimise-1" not in prefect_artifacts
    page.started(stage, tmp_path)
    for step in (2, 6, 7, 8):
        now[0] += 1.0 if step == 7 else 11.0 if step < 8 else 2.0
        page.progressed(stage, {"step": step, "of": 8, "metrics": {}})
    assert prefect_artifacts["progress-optimise-1"]["shares"] == [25.0, 75.0]
    page.finished(stage, Artifact("weights", tmp_path, "k"), reused=False, seconds=40.0)
    assert prefect_artifacts["progress-optimise-1"] == {
        "description": "optimise 1",
        "shares": [25.0, 75.0, 100.0],
    }


def test_watchers_get_the_latest_step_and_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit appends steps, other work overwrites a count; whichever was written last is reported once."""
    now, reported = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    steps, count = tmp_path / "metrics.jsonl", tmp_path / "steps.json"
    tick = _follow(
        (steps, count),
        Stage("reward", "reward", "weights", {}),
        lambda event, stage, line: reported.append((event, line["step"])),
    )

    def write(file: Path, text: str) -> None:
        now[0] += 2.0
        with file.open("a" if file is steps else "w") as out:
            out.write(text)
        os.utime(file, (now[0], now[0]))
        tick()

    tick()
    write(count, '{"step": 40}\n')
    write(count, '{"step": 80}\n')
    write(steps, '{"step": 1}\n')
    write(steps, '{"step": 2}\n{"st')
    now[0] += 2.0
    tick()
    write(count, '{"step": 96}\n')
    assert reported == [("progressed", step) for step in (40, 80, 1, 2, 96)]


def test_artifact_made_by_another_run_is_reported_as_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, reported = tmp_path / "source.jsonl", []
    source.write_text('{"prompt": "a", "completion": "b"}\n')
    ours, theirs = (
        Pipeline.open("sft", home=tmp_path / "home", profile="test", overrides=[f"data.source=path:{source}"])
        for _ in range(2)
    )
    ours.watchers = [SimpleNamespace(started=pytest.fail, finished=lambda *_, **how: reported.append(how))]  # type: ignore[list-item]
    wait = ours.store.working

    def working(*stage: str) -> Any:
        theirs.make("raw")
        return wait(*stage)

    monkeypatch.setattr(ours.store, "working", working)
    assert ours.make("raw") == theirs.artifact("raw") and reported == [{"reused": True, "seconds": 0.0}]


def test_metrics_file_removed_by_a_retry_is_tolerated() -> None:
    def gone() -> Any:
        raise FileNotFoundError

    tick = _follow(
        (SimpleNamespace(exists=lambda: True, stat=gone),), Stage("sft", "sft", "weights", {}), pytest.fail
    )
    assert tick() is None


def test_compared_metrics_have_plain_names_and_counters_a_prefix() -> None:
    meta = {
        "counts": {"cut": 3},
        "seconds": 2.0,
        "spent": {"cpu_seconds": 1.0},
        "round_metrics": {"reward.reward_model": 1.5},
        "reward_model/loss": 0.5,
        "steps": 8,
        "certificate": {
            "accuracy": {"mean": 0.7, "n": 55},
            "limits": {"max_ties": 0.05},
            "reload_difference": 1e-6,
        },
    }
    found = stage_metrics("reward", meta)
    assert {name for name in found if "/" not in name} == {
        "reward.reward_model",
        "reward.certificate.accuracy.mean",
    }
    assert (
        found["details/reward.counts.cut"] == 3.0
        and found["details/reward.steps"] == 8.0
        and {name.partition("/")[0] for name in found if "/" in name} == {"details"}
    )
    assert "reward.reward_model/loss" not in found, "its series is there"
    assert stage_metrics("evaluate", {"final.length": 4.0, "win_rate_vs_sft.mean": 0.6}) == {
        "final.length": 4.0,
        "win_rate_vs_sft.mean": 0.6,
    }


def test_prefect_page_shows_the_outcome(tmp_path: Path, prefect_artifacts: dict[str, dict[str, Any]]) -> None:
    pipeline = Pipeline.open("sft", home=tmp_path, profile="test")
    pipeline.begin()
    stage = pipeline.stages["curated"]
    with pipeline.store.working(stage.name, stage.key) as workspace:
        pipeline.store.publish(
            workspace,
            stage.name,
            stage.key,
            stage.kind,
            [],
            {"seconds": 3.0, "headline": "40 pairs"},
            {"does": stage.does, "options": {}, "inputs": {}},
        )
    pipeline.take(stage)
    pipeline.run.record(
        verdict={
            "passed": True,
            "gates": {"ending": True},
            "reasons": ["ending: passed, its value 0 is over -0.02"],
        }
    )
    pipeline.end("finished")
    PrefectPage().summary(pipeline)
    page = prefect_artifacts["markdown run"]["markdown"]
    assert page.startswith(f"**{pipeline.run.name}** (finished, gates passed): {pipeline.recipe.about}")
    assert "| stage | seconds | result |\n|---|---|---|\n| curated | 3.0 | 40 pairs |" in page


def test_a_server_that_is_away_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free.getsockname()[1]}")
    display = Mock()
    with watched(Pipeline.open("sft", home=tmp_path, profile="test"), display):
        pass
    printed = [str(call.args[0]) for call in display.console.print.call_args_list]
    assert sum("not up to date" in text for text in [*printed, *caplog.messages]) == 1
