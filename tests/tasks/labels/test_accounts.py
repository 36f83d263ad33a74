"""Sign-in on the labelling page with an account of the team server: the rules with a server of a few lines,
and the whole with MLflow's own and a browser.
"""

from __future__ import annotations

import base64
import http.server
import importlib.util
import json
import os
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from ratchet.components.errors import RecipeError, ServiceError
from ratchet.components.labels.labels import Item, read_labels
from ratchet.components.labels.queue import Queue
from ratchet.components.labels.settings import Settings, make_queue
from ratchet.flows.cli import app
from ratchet.flows.ui import free_port, wait_for
from ratchet.tasks.labels.accounts import accepts, checked_server
from ratchet.tasks.labels.server import make_app, serving
from ratchet.tasks.labels.tokens import issue, revoke

PASSWORD = "zwölf:Zeichen und mehr"
NAMES = ("ann", "ann@example.org")
SHOTS = os.environ.get("RATCHET_SCREENSHOTS")


class Accounts(http.server.BaseHTTPRequestHandler):
    """What MLflow 3.17 replies to a request for a user: 401 without a right password, 403 for another's."""

    def do_GET(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        asked = urllib.parse.parse_qs(address.query)["username"][0]
        login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        name, _, password = login.partition(":")
        known = name in NAMES and password == PASSWORD
        status = 404 if not address.path.endswith("/users/get") else 401 if not known else 403
        self.send_response(200 if status == 403 and name == asked else status)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def team() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Accounts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    items = [Item(f"i{i}", [{"role": "user", "content": f"q{i}"}], ["a", "b"]) for i in range(4)]
    make_queue(tmp_path / "queue", items, Settings())
    return tmp_path / "queue"


def signed_in(client: TestClient, name: str, password: str) -> tuple[int, dict[str, str]]:
    reply = client.post("/api/sign-in", json={"name": name, "password": password})
    return reply.status_code, reply.json()


def test_an_account_signs_in_and_labels_under_its_name(team: str, folder: Path) -> None:
    with Queue(folder) as queue:
        client = TestClient(make_app(queue, host="0.0.0.0", team=team))
        refused = client.get("/api/next", headers={"X-Annotator": "ann"})
        assert refused.status_code == 401 and refused.json()["sign_in"] == "account"
        status, found = signed_in(client, "ann", PASSWORD)
        assert status == 200 and found["token"] not in (folder / "annotators.json").read_text()
        headers = {"Authorization": f"Bearer {found['token']}"}
        shown = client.get("/api/next", headers=headers).json()
        label = {"item": shown["item"]["id"], "verdict": "tie", "seconds": 1.0}
        assert client.post("/api/labels", json=label, headers=headers).status_code == 200
        assert [label.annotator for label in read_labels(folder)] == ["ann"]
        revoke(folder, "ann")
        assert client.get("/api/next", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("name", "password", "status"),
    [("ann", "wrong", 403), ("ben", PASSWORD, 403), ("", PASSWORD, 422), (NAMES[1], PASSWORD, 422)],
)
def test_a_wrong_password_and_a_name_that_is_no_pseudonym_get_no_token(
    team: str, folder: Path, name: str, password: str, status: int
) -> None:
    with Queue(folder) as queue:
        assert signed_in(TestClient(make_app(queue, host="0.0.0.0", team=team)), name, password)[0] == status
    assert not (folder / "annotators.json").exists()


def test_with_accounts_a_pseudonym_is_not_enough_on_this_machine_either(team: str, folder: Path) -> None:
    with Queue(folder) as queue:
        client = TestClient(make_app(queue, team=team), base_url="http://localhost")
        assert client.get("/api/next", headers={"X-Annotator": "ann"}).status_code == 401


def test_without_a_team_server_no_password_is_right(folder: Path) -> None:
    with Queue(folder) as queue:
        assert signed_in(TestClient(make_app(queue, host="0.0.0.0")), "ann", PASSWORD)[0] == 403


def test_a_personal_link_is_valid_where_accounts_are(team: str, folder: Path) -> None:
    token = issue(folder, ["ben"])["ben"]
    with Queue(folder) as queue:
        client = TestClient(make_app(queue, team=team), base_url="http://localhost")
        shown = client.get("/api/next", headers={"Authorization": f"Bearer {token}"})
        assert shown.json()["annotator"] == "ben"


def test_a_team_server_that_is_away_is_said_and_no_label_is_lost(folder: Path) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServiceError):
        checked_server(away)
    with Queue(folder) as queue:
        status, found = signed_in(TestClient(make_app(queue, host="0.0.0.0", team=away)), "ann", PASSWORD)
    assert status == 502 and "does not answer" in found["detail"]


def test_the_command_refuses_a_file_instead_of_a_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    done = CliRunner().invoke(app, ["label", str(folder), "--team", "--port", "0"])
    assert isinstance(done.exception, RecipeError) and "MLFLOW_TRACKING_URI" in str(done.exception)


class Open(Accounts):
    """MLflow without accounts: no such address."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()


def test_a_server_without_accounts_is_refused() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Open) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        with pytest.raises(RecipeError, match="basic-auth"):
            checked_server(uri)
        with pytest.raises(ServiceError):
            accepts(uri, "ann", PASSWORD)
        server.shutdown()


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[str]:
    """A real MLflow server with the accounts `ann` and `admin`."""
    if importlib.util.find_spec("flask_wtf") is None:
        pytest.skip("not installed: flask-wtf (the extra team)")
    (tmp_path / "auth.ini").write_text(
        f"[mlflow]\ndefault_permission = NO_PERMISSIONS\ndatabase_uri = sqlite:///{tmp_path}/auth.db\n"
        "admin_username = admin\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    uri = f"http://127.0.0.1:{free_port()}"
    env = {
        **os.environ,
        "MLFLOW_AUTH_CONFIG_PATH": str(tmp_path / "auth.ini"),
        "MLFLOW_AUTH_ADMIN_PASSWORD": "a-password-of-the-test",
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "cookies",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }
    command = ["-m", "mlflow", "server", "--app-name", "basic-auth", "--host", "127.0.0.1", "--port"]
    with (tmp_path / "mlflow.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, *command, uri.rpartition(":")[2]],
            env=env,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(f"{uri}/health", server, tmp_path / "mlflow.log", 300)
        login = base64.b64encode(b"admin:a-password-of-the-test").decode()
        made = urllib.request.Request(
            f"{uri}/api/2.0/mlflow/users/create",
            json.dumps({"username": "ann", "password": PASSWORD}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Basic {login}"},
        )
        urllib.request.urlopen(made, timeout=30).close()
        yield uri
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


@pytest.mark.slow
def test_a_colleague_signs_in_on_the_page_with_the_account_of_mlflow(
    mlflow: str, browser: Any, folder: Path
) -> None:
    assert checked_server(mlflow) == mlflow
    assert accepts(mlflow, "ann", PASSWORD) and not accepts(mlflow, "ann", "wrong")
    with Queue(folder) as queue, serving(make_app(queue, team=mlflow)) as base:
        page = browser.new_context(viewport={"width": 390, "height": 844}).new_page()
        page.goto(base)
        page.wait_for_selector("#password:not([hidden])")
        if SHOTS:
            page.screenshot(path=Path(SHOTS) / "sign-in.png")
        for password in ("1 wrong", PASSWORD):
            page.fill("#name", "ann")
            page.locator("#password").press_sequentially(password)  # its digits are no keys of the page
            page.keyboard.press("Enter")
            if password != PASSWORD:
                page.wait_for_function(
                    "() => document.querySelector('#signin-why').textContent.includes('wrong')"
                )
        page.wait_for_selector("#task:not([hidden])")
        assert read_labels(folder) == []
        page.keyboard.press("1")
        page.wait_for_function("() => document.querySelector('#count').textContent.includes('1 yours')")
        page.reload()
        page.wait_for_function("() => document.querySelector('#count').textContent.includes('1 yours')")
        assert [label.annotator for label in read_labels(folder)] == ["ann"]
        kept = page.evaluate("() => JSON.stringify({...sessionStorage, ...localStorage})")
        assert PASSWORD not in kept and "token" in kept
