"""Alerts: validation, and a real Prefect server that calls a webhook without leaking its address."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ratchet.components.errors import RecipeError
from ratchet.flows.alerts import TEXT, alert_change
from ratchet.flows.deployments import Alert, read
from ratchet.flows.ui import free_port, wait_for
from ratchet.tasks.data.drift import EVENT

ROOT = Path(__file__).resolve().parents[2]
SECRET = "T0K3N-of-the-webhook"


def written(folder: Path, **alerts: Any) -> Path:
    (folder / "deployments.yaml").write_text(
        yaml.safe_dump({"schema": 1, "work_pools": {}, "deployments": [], "alerts": alerts})
    )
    return folder / "deployments.yaml"


@pytest.mark.parametrize(
    ("alert", "message"),
    [
        (
            {"url_from": "https://hooks.example/x"},
            "alerts.people.url_from: the address of a webhook is a secret; name the environment variable",
        ),
        (
            {"url_from": "URL", "on": ["fialed"]},
            "'fialed' is not one of failed, late, drift, health, cancelled, labels; did you mean 'failed'",
        ),
        ({"url_from": "URL", "on": []}, "alerts.people.on: no events"),
        ({"url_form": "URL"}, "unknown key 'url_form'; did you mean 'url_from'"),
    ],
)
def test_invalid_alerts_are_errors(alert: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        read(written(tmp_path, people=alert))


def test_missing_webhook_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.exceptions import ObjectNotFound

    def missing(*_: Any, **__: Any) -> Any:
        raise ObjectNotFound(http_exc=Exception("no block"))

    monkeypatch.delenv("RATCHET_ALERT_URL", raising=False)
    client = SimpleNamespace(read_block_document_by_name=missing, read_automations_by_name=lambda _: [])
    with pytest.raises(RecipeError, match="RATCHET_ALERT_URL"):
        alert_change("people", Alert("RATCHET_ALERT_URL"), client)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"event": EVENT, "payload": {"message": 'data moved: "rating" <5>'}}, 'data moved: "rating" <5>'),
        (
            {"event": "prefect.flow-run.Failed", "payload": {"validated_state": {"message": "no disk"}}},
            "run toy: prefect.flow-run.Failed no disk",
        ),
        (
            {"event": "prefect.flow-run.Late", "payload": {"validated_state": {"message": None}}},
            "run toy: prefect.flow-run.Late",
        ),
        ({"event": EVENT, "payload": {"message": "x" * 9000}}, "x" * 1500),
    ],
)
def test_alert_text(event: dict[str, Any], text: str) -> None:
    from jinja2 import ChainableUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # what Prefect's server renders with

    rendered = (
        ImmutableSandboxedEnvironment(undefined=ChainableUndefined)
        .from_string(TEXT)
        .render(event=SimpleNamespace(**event, resource=SimpleNamespace(name="toy")))
    )
    assert json.loads(rendered) == {"text": text}


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[str]]]:
    """A web server on loopback: its address, with a secret in the path, and the texts it was sent."""
    received: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith(SECRET) and self.headers["Content-Type"] == "application/json":
                received.append(json.loads(body)["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/{SECRET}", received
    server.shutdown()


TELL = """
from prefect import flow
from types import SimpleNamespace
from ratchet.components.errors import HealthError
from ratchet.components.recipes.plan import Stage
from ratchet.tasks.tracking.alerts import AlertWatcher, emit_alert
@flow(name="toy", persist_result=False)
def toy():
    raise ValueError("the disk is on fire")
emit_alert("ratchet.drift", "toy-1", 'data moved: "rating" 7 -> 5', {"recipe": "toy"})
run = SimpleNamespace(run=SimpleNamespace(name="toy-1"), recipe=SimpleNamespace(name="toy"))
AlertWatcher(run).failed(Stage("annotate_2", "annotate", "groups", {}, round=2), HealthError("round 2 was stopped: KL is 41"))
try:
    toy()
except ValueError:
    pass
"""  # noqa: E501


@pytest.mark.slow
def test_prefect_posts_alerts_of_failures_drift_and_health(
    webhook: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, received = webhook
    port = free_port()
    env = {
        **os.environ,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PYTHONPATH": str(ROOT / "infra" / "package"),
        "RATCHET_ALERT_URL": address,
        "PREFECT_LOGGING_LEVEL": "INFO",
    }
    log = tmp_path / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/api/health", server, log, 300)
        file = written(
            tmp_path, people={"url_from": "RATCHET_ALERT_URL", "on": ["failed", "drift", "health"]}
        )
        output = ""

        def ratchet(*more: str) -> str:
            nonlocal output
            done = subprocess.run(
                [sys.executable, "-m", "ratchet.flows.cli", "deploy", "--file", str(file), *more],
                env=env,
                capture_output=True,
                text=True,
            )
            output += done.stdout + done.stderr
            assert done.returncode == 0, output
            return done.stdout

        assert (
            "create  alert       people" in ratchet("--dry-run") and "create  alert       people" in ratchet()
        )
        assert ratchet().endswith("Nothing to change.\n")
        subprocess.run([sys.executable, "-c", TELL], env=env, cwd=ROOT, check=True, capture_output=True)
        end = time.monotonic() + 180
        while time.monotonic() < end and len(received) < 3:
            time.sleep(0.5)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
    assert 'data moved: "rating" 7 -> 5' in received, received
    assert any(
        text.startswith("toy-1: ") and "the run was stopped: round 2 was stopped: KL is 41" in text
        for text in received
    ), received
    assert any("prefect.flow-run.Failed" in text and "the disk is on fire" in text for text in received), (
        received
    )
    assert SECRET not in output + log.read_text() + file.read_text(), "the address of the webhook was printed"
