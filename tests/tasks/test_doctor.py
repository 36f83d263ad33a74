"""The doctor names what is wrong and what to do; every check is tried on a healthy and on a sick patient."""

from __future__ import annotations

import http.server
import sqlite3
import threading
from pathlib import Path

import pytest

from tasks import doctor
from tasks.versioning import dvc

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_servers(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)


def test_every_check_reports_once_and_a_broken_one_hides_no_other(tmp_path, monkeypatch):
    def broken():
        raise ValueError("nobody at http://me:hunter22@gpu")

    monkeypatch.setattr(doctor, "gpu", broken)
    found = {f.name: f for f in doctor.examine(tmp_path / "home", tmp_path)}
    assert len(found) == 11 and found["GPU"].state == "fail" and found["GPU"].seen.endswith("ValueError: nobody at http://***@gpu")
    assert all(f.do for f in found.values() if f.state != "ok") and not (tmp_path / "home").exists()
    assert found["downloads"].seen == "nothing fetched yet" and "no server configured" in found["Prefect"].seen


def test_known_bad_versions_and_others_than_tested(monkeypatch, tmp_path):
    versions = {"fastapi": "0.165.0", "sqlalchemy": "2.0.58", "prefect": "3.8.8"}
    monkeypatch.setattr(doctor, "installed", versions.get)
    found = doctor.known_faults()
    assert found.state == "fail" and "422" in found.seen and "scheduler" not in found.seen and '"fastapi<0.151"' in found.do
    lock = tmp_path / "constraints.txt"
    lock.write_text("# made by a tool\nfastapi==0.150.0\nprefect==3.8.8\nabsent==1\n")
    found = doctor.locked(lock)
    assert found.state == "warn" and found.seen == "1 of 2 packages differ: fastapi 0.165.0 instead of 0.150.0"
    assert doctor.locked(tmp_path / "none").state == "warn"


def test_a_local_build_of_a_pinned_version_is_that_version(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "installed", {"torch": "2.13.0+cpu"}.get)
    (tmp_path / "c.txt").write_text("torch==2.13.0\n")
    assert doctor.locked(tmp_path / "c.txt").state == "ok"


def test_disk_and_write_access(tmp_path, monkeypatch):
    assert doctor.writable(tmp_path / "not" / "yet").state == "ok"
    assert doctor.writable(Path("/proc/nowhere")).state == "fail"
    for free, state in ((50e9, "ok"), (5e9, "warn"), (5e8, "fail")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free: type("Usage", (), {"free": free}))
        assert doctor.disk(tmp_path).state == state


def test_servers(tmp_path, monkeypatch):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("PREFECT_API_URL", address + "/api")
    assert doctor.mlflow(tmp_path).state == "ok" and "404" in doctor.prefect().seen
    server.shutdown()
    server.server_close()
    assert doctor.mlflow(tmp_path).state == "fail" and "ratchet sync" in doctor.mlflow(tmp_path).do

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with sqlite3.connect(tmp_path / "mlflow.db") as base:
        base.execute("create table runs (id)")
    assert doctor.mlflow(tmp_path).seen.endswith("mlflow.db, 0 runs")
    (tmp_path / "mlflow.db").write_text("not a database, whatever its name says" * 40)
    assert doctor.mlflow(tmp_path).state == "fail"


def test_dvc_remotes(tmp_path):
    assert doctor.dvc_remote(tmp_path).state == "warn"
    dvc(tmp_path, "init", "--no-scm", "--quiet")
    assert doctor.dvc_remote(tmp_path).seen.startswith("none")
    dvc(tmp_path, "remote", "add", "-d", "here", str(tmp_path / "remote"))
    assert doctor.dvc_remote(tmp_path).state == "ok"
    dvc(tmp_path, "remote", "modify", "here", "url", "/proc/remote")
    assert doctor.dvc_remote(tmp_path).state == "fail"


def test_damaged_downloads_are_found(publish, tmp_path):
    raw = publish("raw", kind="data", text="abc")
    assert doctor.downloads(tmp_path).seen == "1 agree with their SHA-256"
    file = raw.path / "evaluate.parquet"
    file.write_text("abd")
    found = doctor.downloads(tmp_path)
    assert found.state == "fail" and str(file) in found.seen and f"remove {raw.path}" in found.do
    file.write_text("ab")
    assert "expected 3 bytes" in doctor.downloads(tmp_path).seen
