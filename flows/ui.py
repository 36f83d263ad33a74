"""`ratchet ui`: an MLflow and a Prefect server on free local ports, until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

import typer

from ratchet.components.errors import ServiceError
from ratchet.tasks.process.orphans import reap_children_on_exit
from ratchet.tasks.tracking.server import TRAINING, experiment_name, tracking_uri

HOST = "127.0.0.1"


def serve(home: Path) -> None:
    """Start both servers on 127.0.0.1, print their addresses, wait for Ctrl-C. They end with this process,
    however it ends.
    """
    reap_children_on_exit()
    ports, logs = {"mlflow": free_port(), "prefect": free_port()}, home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    env = {
        "PREFECT_HOME": str((home / "prefect").resolve()),
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_UI_API_URL": f"http://{HOST}:{ports['prefect']}/api",
    }
    artifacts = (home / "mlartifacts").resolve().as_uri()
    stores = ["--backend-store-uri", tracking_uri(home), "--default-artifact-root", artifacts]
    commands = {
        "mlflow": ["mlflow", "server", "--workers", "1", *stores],
        "prefect": ["prefect", "server", "start"],
    }
    children = {}
    for name, command in commands.items():
        command = [sys.executable, "-m", *command, "--host", HOST, "--port", str(ports[name])]
        with (logs / f"{name}-server.log").open("w") as log:
            children[name] = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True
            )
    with contextlib.suppress(KeyboardInterrupt):
        for name, child in children.items():
            address = f"http://{HOST}:{ports[name]}"
            wait_for(address, child, logs / f"{name}-server.log")
            typer.echo(f"{name:<8} {address}{training_view(address) if name == 'mlflow' else ''}")
        typer.echo("Ctrl-C ends both.")
        while all(child.poll() is None for child in children.values()):
            time.sleep(0.5)


def training_view(address: str) -> str:
    """URL fragment of the experiment's training runs in MLflow (its start page lists traces); empty before
    the first run is tracked.
    """
    ask = f"{address}/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(experiment_name())}"
    try:
        with urllib.request.urlopen(ask, timeout=10) as answer:
            number = json.load(answer)["experiment"]["experiment_id"]
    except OSError:  # nothing was tracked yet
        return ""
    return f"/#/experiments/{number}?{TRAINING}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def wait_for(address: str, child: subprocess.Popen[bytes], log: Path, seconds: float = 90.0) -> None:
    """Wait until the server answers; `ServiceError` with the end of its log otherwise."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if child.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    tail = " / ".join(log.read_text().splitlines()[-3:])
    raise ServiceError(
        f"the server for {address} did not answer within {seconds:.0f} s; its log {log} ends: {tail}"
    )
