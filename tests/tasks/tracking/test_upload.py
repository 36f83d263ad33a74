"""Upload of runs to MLflow (real sqlite store): late, repeated, interrupted, with an unreachable server."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import BusyError, RecipeError, ServiceError
from ratchet.tasks.data.versioning import dvc_md5
from ratchet.tasks.machine.system import samples_of
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking.mlflow_runs import ROOT, mlflow_runs
from ratchet.tasks.tracking.server import client, cut, experiment_id, flatten
from ratchet.tasks.tracking.upload import BackgroundUploader, lines, sync, uploading

STEP = "online/round-1"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the MLflow database; creating it takes seconds."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """A started run of `online_dpo`: everything up to the first rollout is finished, `optimise_1` is
    running.
    """
    run = Pipeline.open("online_dpo", home=tmp_path / "store", profile="test")
    run.begin()
    for name in (
        *(n for n in run.stages if n.startswith("model_")),
        "raw",
        "drafts",
        "curated",
        "rollout_1",
        "annotate_1",
        "select_1",
    ):
        publish(run, name)
    write(work(run, "optimise_1"), range(5))
    return run


def publish(pipeline: Pipeline, name: str, **meta: Any) -> None:
    stage = pipeline.stages[name]
    with pipeline.store.working(stage.name, stage.key) as workspace:
        (workspace.product / "data.parquet").write_text(name)
        pipeline.store.publish(
            workspace,
            stage.name,
            stage.key,
            stage.kind,
            [],
            {"seconds": 1.0, **meta},
            {"does": stage.does, "options": {}, "inputs": dict(stage.inputs)},
        )
    pipeline.take(stage)


def work(pipeline: Pipeline, name: str) -> Path:
    """Metrics file of a running stage."""
    file = (
        pipeline.store.root
        / ".work"
        / f"{name}-{pipeline.stages[name].key[:16]}"
        / "product"
        / "metrics.jsonl"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def write(file: Path, steps: range, value: float = 1.0) -> None:
    with file.open("a") as out:
        for step in steps:
            out.write(
                json.dumps({"step": step, "time": 1000.0 + step, "metrics": {"loss": value, "note": "text"}})
                + "\n"
            )


def losses(home: Path, run_id: str | None) -> list[tuple[int, float, int]]:
    return [(m.step, m.value, m.timestamp) for m in client(home).get_metric_history(run_id, "loss")]


def run_id(home: Path, key: str) -> str:
    mlflow = client(home)
    (found,) = mlflow.search_runs([experiment_id(mlflow, home)], f"tags.`ratchet.key` = '{key}'")
    return found.info.run_id


def test_runs_nest_and_uploading_twice_or_resuming_adds_nothing(home: Path, pipeline: Pipeline) -> None:
    run, file = pipeline.run.path, work(pipeline, "optimise_1")
    with file.open("a") as out:
        out.write('{"step": 5, "tim')  # torn by a kill
    assert sync(run, home) > 5 and sync(run, home) == 0
    with uploading(run, home) as uploader:
        assert uploader.upload() == 0
        ids = {key: sent.id for key, sent in uploader.sent.items()}
        link = uploader.link("report.html")
    mlflow = client(home)
    top, round_one = mlflow.get_run(ids[ROOT]), mlflow.get_run(ids[STEP])
    assert top.info.status == round_one.info.status == "RUNNING"  # killed, so it was never ended
    assert (
        top.data.params["recipe.name"] == "online_dpo"
        and round_one.data.tags["mlflow.parentRunId"] == ids["online"]
    )
    assert {(i.dataset.name, i.dataset.digest) for i in round_one.inputs.dataset_inputs} >= {
        ("rollout_1", dvc_md5(pipeline.artifact("rollout_1").path)[:36])
    }
    assert [a.path for a in mlflow.list_artifacts(ids[ROOT])] == ["recipe.yaml"]
    assert (
        link
        == f"#/experiments/{top.info.experiment_id}/runs/{ids[ROOT]}/artifacts/report.html?workflowType=machine_learning"  # noqa: E501
    )
    assert (
        mlflow.get_experiment(top.info.experiment_id).tags["mlflow.experimentKind"]
        == "custom_model_development"
    )

    file.write_text("")  # the stage resumes from its checkpoint at step 3: steps 3 and 4 are logged again
    write(file, range(3, 8), value=2.0)
    pipeline.end("stopped")
    tracking = BackgroundUploader(run, home)
    tracking.start()
    assert tracking.close(wait_seconds=600) and tracking.run_id() == ids[ROOT]
    assert losses(home, ids[STEP]) == [(s, 1.0 if s < 5 else 2.0, (1000 + s) * 1000) for s in range(8)]
    assert mlflow.get_run(ids[ROOT]).info.status == mlflow.get_run(ids[STEP]).info.status == "KILLED"
    assert tracking.artifact_url("report.html") is None, "no server shows an sqlite file"


def test_a_run_whose_server_was_replaced_is_uploaded_again(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.end("finished")
    monkeypatch.chdir(tmp_path)  # where such a server keeps its artifacts
    for name in ("one", "other"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / name}.db")
        assert sync(pipeline.run.path, tmp_path) > 5
    assert sync(pipeline.run.path, tmp_path) == 0


def test_run_is_uploaded_in_the_background(home: Path, pipeline: Pipeline) -> None:
    tracking = BackgroundUploader(pipeline.run.path, home, every_seconds=0.1)
    tracking.start()
    assert tracking.run_id(wait_seconds=600)
    assert len(losses(home, run_id(home, f"{pipeline.run.path}#{STEP}"))) == 5
    with pytest.raises(BusyError, match="another process"):
        sync(pipeline.run.path, home)
    assert tracking.close(wait_seconds=600)


def test_a_run_that_another_process_uploads_is_uploaded_afterwards(home: Path, pipeline: Pipeline) -> None:
    tracking = BackgroundUploader(pipeline.run.path, home, every_seconds=0.1)
    with uploading(pipeline.run.path, home):
        tracking.start()
        end = time.monotonic() + 600
        while tracking.last_error is None and time.monotonic() < end:
            time.sleep(0.05)
        assert "another process" in (tracking.last_error or "")
    assert tracking.close(wait_seconds=600) and tracking.run_id()


@pytest.mark.parametrize("kind", ["dead", "frozen"])
def test_unreachable_mlflow_server_loses_nothing(
    home: Path, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = pipeline.run.path
    with contextlib.closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        if kind == "frozen":
            server.listen()  # accepts and never answers
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        tracking = BackgroundUploader(run, home, every_seconds=0.1)
        begin = time.monotonic()
        tracking.start()
        assert time.monotonic() - begin < 10, "it waited for the server"  # MLflow's client would wait minutes
        if kind == "dead":  # three failures a second apart are enough
            assert tracking.run_id(wait_seconds=600) is None and 3 <= tracking._failures <= 6
        pipeline.end("finished")
        assert not tracking.close(wait_seconds=3) and tracking.last_error
        if kind == "dead":
            with pytest.raises(ServiceError, match="nothing is lost"):
                sync(run, home)
    tracking._thread.join(600)  # the socket is closed: its last try ends
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert sync(run, home) > 5
    ids = {key: run_id(home, f"{run}#{key}") for key in (ROOT, STEP)}
    assert client(home).get_run(ids[ROOT]).info.status == "FINISHED" and len(losses(home, ids[STEP])) == 5


def test_directory_without_a_run_is_an_error(home: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is not a run"):
        sync(tmp_path, home)


def test_users_mlflow_settings_are_kept(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    client(home)
    assert (
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
        and os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    )


# --- what MLflow should show, without MLflow
# ------------------------------------------------------------------------------


def test_failed_run_keeps_finished_stages_finished(pipeline: Pipeline) -> None:
    pipeline.end("failed", error="TrainingError: no pair is left", failed_stage="optimise_1")
    runs = mlflow_runs(pipeline.run.path)
    assert {key for key, run in runs.items() if run.status != "FINISHED"} == {ROOT, "online", STEP}
    assert {runs[key].status for key in (ROOT, "online", STEP)} == {"FAILED"} and runs[STEP].tags[
        "error"
    ] == "TrainingError: no pair is left"
    assert runs["online"].end == runs[STEP].end > runs[STEP].start


def test_stages_of_a_round_share_one_mlflow_run_with_their_data_sets(pipeline: Pipeline) -> None:
    runs = mlflow_runs(pipeline.run.path)
    assert set(runs[STEP].inputs) == {"curated", "rollout_1", "annotate_1"}
    publish(pipeline, "optimise_1", steps=4)
    runs = mlflow_runs(pipeline.run.path)
    assert (
        set(runs[STEP].inputs)
        == {
            "curated",
            "rollout_1",
            "annotate_1",
            "select_1",
        }
        and runs[STEP].status == "FINISHED"
    )
    assert {"raw", "drafts", "select_1"} <= set(runs[ROOT].inputs)
    assert {
        "step": 1,
        "time": pytest.approx(time.time(), abs=600),
        "metrics": {"details/optimise.seconds": 1.0, "details/optimise.steps": 4.0},
    } in runs[STEP].points


def test_system_metrics_of_another_machine_are_on_the_run_of_its_stage(pipeline: Pipeline) -> None:
    seen = samples_of(pipeline.run.path, "rollout_1")
    assert [key for key, run in mlflow_runs(pipeline.run.path).items() if seen in run.files] == [STEP]


def test_mlflow_description_has_the_verdict_and_a_table_of_stages(pipeline: Pipeline) -> None:
    note = mlflow_runs(pipeline.run.path)[ROOT].tags["mlflow.note.content"]
    assert note.startswith(f"**{pipeline.run.name}** (running)") and pipeline.recipe.about in note
    pipeline.run.record(
        state="finished",
        ended=1.0,
        champion=False,
        registered={"optimise_2": "online_dpo:1"},
        verdict={
            "passed": False,
            "gates": {"ending": False},
            "reasons": ["ending: failed, its value -0.3 is not over -0.02"],
        },
    )
    note = mlflow_runs(pipeline.run.path)[ROOT].tags["mlflow.note.content"]
    assert (
        "(finished, 1 of 1 gates failed)" in note
        and "ending: its value -0.3 is not over -0.02" in note
        and "online_dpo version 1 (optimise_2)" in note
    )
    assert "| curated |" in note and "Evaluation report" not in note
    publish(pipeline, "evaluate")
    (pipeline.run.path / "stages" / "evaluate" / "report.html").write_text("")
    note = mlflow_runs(pipeline.run.path, "http://here/report.html")[ROOT].tags["mlflow.note.content"]
    assert f"{pipeline.recipe.about} [Evaluation report](http://here/report.html)" in note


def test_names_and_texts_fit_mlflows_limits() -> None:
    assert flatten({"a": {"b": 1, "c": [1, 2]}, "d": [{"e": "x"}], "f,g": {}}) == {
        "a.b": "1",
        "a.c": "[1, 2]",
        "d.0.e": "x",
        "f_g": "{}",
    }
    assert len(cut("x" * 9000, 6000)) == 6000 and cut("x" * 9000, 6000).endswith("[cut, 9000 characters]")
    assert lines(b'{"step": 1}\n{"st') == [{"step": 1}]
