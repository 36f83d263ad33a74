"""The MLflow mirror against a real sqlite store: late, twice, interrupted, unreachable."""

import contextlib
import json
import os
import socket
import time

import pytest

from ratchet.components.errors import RecipeError, ServiceError
from ratchet.tasks.journal import flatten, read_journal, read_json
from ratchet.tasks.mirror import Shipper, shipped_file, sync
from ratchet.tasks.server import BOUNDS, bounded, client
from ratchet.tasks.tracking import Tracking


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    return tmp_path_factory.mktemp("home")


def write(file, steps, value=1.0):
    with open(file, "a") as out:
        for step in steps:
            out.write(json.dumps({"step": step, "time": 1000.0 + step, "metrics": {"loss": value, "note": "text"}}) + "\n")


def worked(run, home, file, *, live=False):
    tracking = Tracking(home, live=live, every_seconds=0.1)
    tracking.open_run(run, "chat-1", {"beta": 0.1, "stages": [{"lr": 1e-5}], "long": "x" * 9000}, {"recipe": "chat"})
    stage = tracking.open_stage("online")
    child = tracking.open_stage("round-1", parent=stage, tags={"iteration": 1})
    tracking.follow(file, child)
    return tracking, stage, child


def points(home, run_id):
    return [(m.step, m.value, m.timestamp) for m in client(home).get_metric_history(run_id, "loss")]


def test_runs_nest_and_shipping_twice_or_resuming_adds_nothing(home, tmp_path):
    run, file = tmp_path / "run", tmp_path / "metrics.jsonl"
    write(file, range(5))
    with open(file, "a") as out:
        out.write('{"step": 5, "tim')  # torn by a kill
    tracking, stage, child = worked(run, home, file)
    data, note = tmp_path / "pairs.jsonl", tmp_path / "report.html"
    note.write_text("<p>1</p>")
    tracking.log_input("pairs", data, "0123456789abcdef0123456789abcdef.dir", "training", child)
    tracking.log_artifacts([note], stage)
    first = sync(run, home)
    assert first["points"] == 5 and first["runs"] == 3
    again = sync(run, home)
    assert again["points"] == again["runs"] == 0

    ids = {k: tracking.run_id(k) for k in ("", stage, child)}
    mlflow = client(home)
    top, round_one = mlflow.get_run(ids[""]), mlflow.get_run(ids[child])
    assert top.info.status == "RUNNING"  # nobody closed it: killed
    assert top.data.params["stages.0.lr"] == "1e-05" and top.data.params["long"].endswith("[cut, 9000 characters]")
    assert round_one.data.tags["mlflow.parentRunId"] == ids[stage]
    assert round_one.inputs.dataset_inputs[0].dataset.digest == "0123456789abcdef0123456789abcdef.dir"
    assert [a.path for a in mlflow.list_artifacts(ids[stage])] == ["report.html"]
    assert read_json(shipped_file(run, home))["experiment"] == top.info.experiment_id, "the address of a page is made of it"
    assert tracking.page("report.html") is None, "no server shows an sqlite file"
    assert tracking.link("report.html") == f"#/experiments/{top.info.experiment_id}/runs/{ids['']}/artifacts/report.html?workflowType=machine_learning"
    assert mlflow.get_experiment(top.info.experiment_id).tags["mlflow.experimentKind"] == "custom_model_development"

    file.write_text("")  # the stage goes on from its checkpoint at step 3: steps 3 and 4 come again
    write(file, range(3, 8), value=2.0)
    tracking, *_ = worked(run, home, file)
    tracking.close_stage(child)
    assert tracking.close(wait_seconds=60)
    assert tracking.run_id() == ids[""]
    assert points(home, ids[child]) == [(s, 1.0 if s < 5 else 2.0, (1000 + s) * 1000) for s in range(8)]
    assert mlflow.get_run(ids[""]).info.status == "FINISHED"
    assert mlflow.get_run(ids[""]).data.tags["attempt"] == "2"


def test_a_kill_before_the_bookkeeping_duplicates_nothing(home, tmp_path):
    run, file = tmp_path / "run", tmp_path / "metrics.jsonl"
    write(file, range(4))
    tracking, _, child = worked(run, home, file)
    sync(run, home)
    id_before = tracking.run_id(child)
    for state in (run / "tracking").glob("shipped-*.json"):
        state.unlink()
    assert sync(run, home)["points"] == 0
    assert tracking.run_id(child) == id_before and len(points(home, id_before)) == 4


def test_a_side_thread_ships_while_the_work_goes_on(home, tmp_path):
    file = tmp_path / "metrics.jsonl"
    tracking, _, child = worked(tmp_path / "run", home, file, live=True)
    write(file, range(3))
    run_id = tracking.run_id(child, wait_seconds=60)
    end = time.monotonic() + 30
    while len(points(home, run_id)) < 3 and time.monotonic() < end:
        time.sleep(0.2)
    assert len(points(home, run_id)) == 3
    with pytest.raises(ServiceError, match="another process"):
        sync(tmp_path / "run", home)
    assert tracking.close(wait_seconds=60)


def test_a_run_that_another_process_ships_is_shipped_afterwards(home, tmp_path):
    file = tmp_path / "metrics.jsonl"
    write(file, range(3))
    worked(tmp_path / "run", home, file)  # and killed: `ratchet sync` has it now
    with contextlib.closing(Shipper(tmp_path / "run", home)):
        tracking, *_ = worked(tmp_path / "run", home, file, live=True)
        end = time.monotonic() + 30
        while tracking.problem is None and time.monotonic() < end:
            time.sleep(0.05)
        assert "another process" in (tracking.problem or "")
    assert tracking.close(wait_seconds=60) and tracking.run_id()


@pytest.mark.parametrize("kind", ["dead", "frozen"])
def test_a_server_that_is_away_stops_nothing_and_loses_nothing(home, tmp_path, monkeypatch, kind):
    file, run = tmp_path / "metrics.jsonl", tmp_path / "run"
    write(file, range(3))
    with contextlib.closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        if kind == "frozen":
            server.listen()  # accepts and never answers
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        begin = time.monotonic()
        tracking, *_ = worked(run, home, file, live=True)
        assert time.monotonic() - begin < 10, "it waited for the server"  # whose client would wait minutes
        if kind == "dead":  # who wants the id asks thrice, and neither waits for nothing nor knocks ten times a second
            assert tracking.run_id(wait_seconds=60) is None and 3 <= tracking._failures <= 6
            begin = time.monotonic()
        assert not tracking.close(wait_seconds=3)
        assert time.monotonic() - begin < 30 and tracking.problem
        if kind == "dead":
            with pytest.raises(ServiceError, match="nothing is lost"):
                sync(run, home)
    if kind == "frozen":
        tracking._thread.join(60)  # the socket is closed: its last try ends
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert sync(run, home)["points"] == 3
    assert client(home).get_run(tracking.run_id()).info.status == "FINISHED"


def test_bounds_hold_only_inside_and_respect_the_user(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    with bounded(), bounded():
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == BOUNDS["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_what_is_not_a_run_is_refused_and_one_process_ships(home, tmp_path):
    with pytest.raises(RecipeError, match="not a tracked run"):
        sync(tmp_path, home)
    (tmp_path / "tracking").mkdir()
    with contextlib.closing(Shipper(tmp_path, home)), pytest.raises(ServiceError, match="another process"):
        Shipper(tmp_path, home)


def test_flatten():
    assert flatten({"a": {"b": 1, "c": [1, 2]}, "d": [{"e": "x"}], "f,g": {}}) == {
        "a.b": "1", "a.c": "[1, 2]", "d.0.e": "x", "f_g": "{}"}


def test_a_line_torn_by_a_kill_takes_no_other_along(tmp_path):
    """The journal ends in half an event; what is said next stands on a line of its own."""
    tracking = Tracking(tmp_path, live=False)
    tracking.open_run(tmp_path / "run", "chat-1", {}, {"recipe": "chat"})
    with open(tmp_path / "run" / "tracking" / "journal.jsonl", "a") as journal:
        journal.write('{"event": "tags", "key": "", "tags": {"lost')
    tracking.tag({"said": "after"})
    runs, _ = read_journal(tmp_path / "run")
    assert runs[""].tags.items() >= {("recipe", "chat"), ("said", "after")} and "lost" not in runs[""].tags
