"""`ratchet ui`: its MLflow URL shows the training runs."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ratchet.flows.ui import training_view


class Mlflow(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path == "/api/2.0/mlflow/experiments/get-by-name?experiment_name=ratchet"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"experiment": {"experiment_id": "7"}}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_ui_prints_the_address_of_the_training_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    with HTTPServer(("127.0.0.1", 0), Mlflow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert training_view(address) == "/#/experiments/7?workflowType=machine_learning"
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "never made")
        assert training_view(address) == ""
        server.shutdown()
