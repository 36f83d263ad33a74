"""The registry on sqlite and against a real `mlflow server`: the two refuse different things."""

import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from components.errors import ServiceError, StoreError
from tasks.mirror import client, experiment_id
from tasks.registry import champion, events, history, promote, register, saved_lineage

LINEAGE = {"recipe": "chat", "revision": "abc", "data": {"pairs": "d1"}, "parents": ["sft"]}


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(folder / "log", "w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
             "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts")],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
            cwd=folder, stdout=out, stderr=out, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()[-2000:]
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(20)


def model(folder, text):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(text)
    return folder


def walk(tmp_path, home):
    """The life of three checkpoints; the same on any backend."""
    name = f"policy-{tmp_path.name}"
    one, two = model(tmp_path / "one", "1"), model(tmp_path / "two", "2")
    mlflow = client(home)
    run = mlflow.create_run(experiment_id(mlflow, home)).info.run_id
    middle = register(one, name, lineage=LINEAGE, metrics={}, run_id=run, external=True, home=home)
    assert register(one, name, lineage=LINEAGE, run_id=run, external=True, home=home) == middle
    final = register(one, name, lineage=LINEAGE, metrics={"win_rate": 0.6}, run_id=run, home=home)
    assert final != middle and register(one, name, lineage=LINEAGE, external=True, home=home) == middle
    assert register(one, name, lineage=LINEAGE, run_id=run, home=home) == final
    second = mlflow.create_run(experiment_id(mlflow, home)).info.run_id  # made the same weights of the same data: its page says so, once
    for _ in range(2):
        assert register(one, name, lineage=LINEAGE, metrics={"win_rate": 0.6}, run_id=second, home=home) == final
    assert [m.value for m in mlflow.get_metric_history(second, "win_rate")] == [0.6]
    assert len(mlflow.get_run(second).outputs.model_outputs) == 1
    other = register(one, name, lineage={**LINEAGE, "data": {"pairs": "d2"}}, home=home)
    assert other not in (middle, final)  # the same weights from other data are another version

    assert champion(name, home=home) is None
    assert promote(name, final, {"passed": True, "reasons": ["win rate 0.60 > 0.50"]}, home=home)
    worse = register(two, name, lineage=LINEAGE, home=home)
    assert not promote(name, worse, {"passed": False, "reasons": ["tax 1.3 > 1.1"]}, home=home)
    best = champion(name, home=home)
    assert best.version == final and best.tags["lineage.data.pairs"] == "d1" and best.tags["metric.win_rate"] == "0.6"
    assert best.tags["verdict.why"] == "win rate 0.60 > 0.50" and best.tags["package.torch"]
    versions = {v.version: v for v in history(name, home=home)}
    assert versions[worse].aliases == ("candidate",) and versions[worse].tags["verdict"] == "refused"
    assert saved_lineage(versions[middle], home=home) == saved_lineage(versions[final], home=home) == LINEAGE
    assert versions[middle].external and not versions[final].external
    assert promote(name, worse, {"passed": True, "reasons": ["a person said so"]}, home=home)
    after = {v.version: v for v in history(name, home=home)}
    assert events(after[final])[-1]["replaced_by"] == worse and events(after[worse])[-1]["replaced"] == final
    assert champion(name, home=home).version == worse
    with pytest.raises(StoreError, match="no bytes in the registry"):
        promote(name, middle, {"passed": True}, home=home)
    with pytest.raises(StoreError, match="no version 99"):
        promote(name, "99", {"passed": True}, home=home)
    return mlflow, versions[final], versions[middle]


def test_the_registry_on_sqlite(tmp_path, home, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    mlflow, final, middle = walk(tmp_path, home)
    names = [a.path for a in mlflow.list_logged_model_artifacts(final.model_id)]
    assert sorted(names) == ["config.json", "lineage.json", "model.safetensors"]
    assert [a.path for a in mlflow.list_logged_model_artifacts(middle.model_id)] == ["MLmodel", "lineage.json"]  # no bytes copied


@pytest.mark.slow
def test_the_registry_on_a_server(tmp_path, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    _, final, _ = walk(tmp_path, tmp_path / "home")
    from mlflow.artifacts import download_artifacts

    got = download_artifacts(f"models:/{final.name}/{final.version}", tracking_uri=server, dst_path=str(tmp_path / "got"))
    assert (tmp_path / "got" / "model.safetensors").read_text() == "1", got


def test_no_server_is_one_clear_error(tmp_path, home, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(ServiceError, match="nothing is lost"):
            register(model(tmp_path / "m", "1"), "policy", lineage=LINEAGE, home=home)
    with pytest.raises(StoreError, match="no files"):
        register(tmp_path / "empty", "policy", lineage={}, home=home)


def test_nothing_is_registered_for_a_run_that_mlflow_has_not_got(tmp_path):
    """Its versions would never be linked to it: the same command registers them later."""
    from tasks.pipeline import Pipeline
    from tasks.registration import register_run

    assert "has not reached sqlite:" in register_run(Pipeline.open("sft", home=tmp_path, profile="test"), None)["postponed"]
    assert not (tmp_path / "registry.lock").exists() and not (tmp_path / "mlflow.db").exists()
