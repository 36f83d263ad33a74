"""Checks of MLflow, Prefect and the DVC remote, up and down."""

from __future__ import annotations

import base64
import http.server
import sqlite3
import threading

import pytest

from ratchet.tasks.data.versioning import dvc
from ratchet.tasks.machine import doctor


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
