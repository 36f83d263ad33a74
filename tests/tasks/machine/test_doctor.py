"""`ratchet doctor`: each check on a healthy and on a broken installation."""

from __future__ import annotations

import base64
import http.server
import sqlite3
import threading
from pathlib import Path

import pytest

from ratchet.tasks.data.versioning import dvc
from ratchet.tasks.machine import doctor


@pytest.fixture(autouse=True)
def no_servers(monkeypatch):
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_USERNAME",
        "MLFLOW_TRACKING_PASSWORD",
        "PREFECT_API_URL",
        "PREFECT_API_AUTH_STRING",
    ):
        monkeypatch.delenv(name, raising=False)


def test_crashing_check_does_not_hide_others(tmp_path, monkeypatch):
    def broken():
        raise ValueError("no answer from http://me:hunter22@gpu")

    monkeypatch.setattr(doctor, "gpu", broken)
    found = {f.name: f for f in doctor.examine(tmp_path / "home", tmp_path)}
    assert (
        len(found) == 8
        and found["GPU"].state == "fail"
        and found["GPU"].seen.endswith("ValueError: no answer from http://***@gpu")
    )
    assert all(f.do for f in found.values() if f.state != "ok") and not (tmp_path / "home").exists()
    assert "no server configured" in found["Prefect"].seen


def test_untested_versions_are_reported(monkeypatch, tmp_path):
    versions = {"fastapi": "0.165.0", "sqlalchemy": "2.0.58", "prefect": "3.8.8"}
    monkeypatch.setattr(doctor, "installed", versions.get)
    lock = tmp_path / "constraints.txt"
    lock.write_text("# made by a tool\nfastapi==0.150.0\nprefect==3.8.8\nabsent==1\n")
    found = doctor.locked(lock)
    assert (
        found.state == "warn" and found.seen == "1 of 2 packages differ: fastapi 0.165.0 instead of 0.150.0"
    )
    assert doctor.locked(tmp_path / "none").state == "warn"


def test_versions_that_pyproject_refuses_are_reported(monkeypatch):
    versions = {doctor.DISTRIBUTION: "0.1", "fastapi": "0.165.0"}
    monkeypatch.setattr(doctor, "installed", versions.get)
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: ["fastapi<0.151", "dvc>=3; extra == 'team'"])
    found = doctor.packages_fit()
    assert found.state == "fail" and found.seen == "fastapi 0.165.0 is not <0.151" and found.do
    versions["fastapi"] = "0.150.0"
    assert doctor.packages_fit().state == "ok"
    del versions["fastapi"]
    assert doctor.packages_fit().seen == "fastapi is missing"


def test_a_local_build_of_a_pinned_version_is_that_version(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "installed", {"torch": "2.13.0+cpu"}.get)
    (tmp_path / "c.txt").write_text("torch==2.13.0\n")
    assert doctor.locked(tmp_path / "c.txt").state == "ok"


def test_disk_and_write_access(tmp_path, monkeypatch):
    assert doctor.writable(tmp_path / "not" / "yet").state == "ok"
    assert doctor.writable(Path("/proc/nowhere")).state == "fail"
    for free, state in ((50e9, "ok"), (5e9, "warn"), (5e8, "fail")):
        monkeypatch.setattr(
            doctor.shutil, "disk_usage", lambda _, free=free: type("Usage", (), {"free": free})
        )
        assert doctor.disk(tmp_path).state == state


def test_reachable_and_unreachable_servers_are_reported(tmp_path, monkeypatch):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(404 if self.path == "/api/health" else 200)
            self.end_headers()
            self.wfile.write(b'{"experiments": []}')

        do_POST = do_GET

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


@pytest.fixture
def closed(monkeypatch):
    """Password-protected MLflow and Prefect on one port: public health endpoints, everything else only for
    admin. The status code of a refusal is configurable.
    """
    allowed, status = "Basic " + base64.b64encode(b"admin:hunter22").decode(), [401]

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            known = self.path.endswith("/health") or (
                self.headers["Authorization"] == allowed and status[0] == 401
            )
            body = (b'{"experiments": []}' if "mlflow" in self.path else b"[]") if known else b"no"
            self.send_response(200 if known else status[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.server_port}/api")
    yield status
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("password", "message"),
    [
        (None, "not set here"),
        ("wrong-one", "the server expects a different"),
        ("hunter22", "accepts our credentials"),
    ],
)
def test_rejected_credentials_are_reported(closed, password, message, tmp_path, monkeypatch):
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_CLIENT_CSRF_SUPPORT_ENABLED,
        temporary_settings,
    )

    if password:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", f"admin:{password}")
    given = {
        PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: False,
        PREFECT_API_AUTH_STRING: f"admin:{password}" if password else None,
    }
    with temporary_settings(given):  # what a new process takes from its environment
        found = {
            "MLFLOW_TRACKING_PASSWORD": doctor.mlflow(tmp_path),
            "PREFECT_API_AUTH_STRING": doctor.prefect(),
        }
    for variable, one in found.items():
        assert (
            one.state == ("ok" if password == "hunter22" else "fail")
            and message in one.seen
            and (password or "?") not in one.seen + one.do
        )
        assert one.state == "ok" or ("401" in one.seen and variable in one.do)


@pytest.mark.parametrize(("status", "do"), [(403, "permissions"), (400, "log")])
def test_server_error_after_login_is_reported(closed, status, do, tmp_path):
    closed[0] = status
    for found, variable in (
        (doctor.mlflow(tmp_path), "MLFLOW_TRACKING_USERNAME"),
        (doctor.prefect(), "PREFECT_API_AUTH_STRING"),
    ):
        assert found.state == "fail" and f"is up but answers {status}: " in found.seen and do in found.do
        assert (variable in found.do) == (status == 403)


def test_dvc_remotes(tmp_path):
    assert doctor.dvc_remote(tmp_path).state == "warn"
    dvc(tmp_path, "init", "--no-scm", "--quiet")
    assert doctor.dvc_remote(tmp_path).seen.startswith("none")
    dvc(tmp_path, "remote", "add", "-d", "here", str(tmp_path / "remote"))
    assert doctor.dvc_remote(tmp_path).state == "ok"
    dvc(tmp_path, "remote", "modify", "here", "url", "/proc/remote")
    assert doctor.dvc_remote(tmp_path).state == "fail"
