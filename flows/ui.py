"""`ratchet ui`: an MLflow and a Prefect server on free local ports, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

import typer

from ratchet.components.errors import ServiceError
from ratchet.tasks.tracking.server import TRAINING, experiment_name, tracking_uri

HOST = "127.0.0.1"


def serve(home: Path) -> None:
    """Start both servers on 127.0.0.1, print their addresses, wait for Ctrl-C, stop both."""
    mlflow, prefect, logs = free_port(), free_port(), home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    env = environment(home, prefect)
    children: list[tuple[str, str, subprocess.Popen[bytes]]] = []

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # however the terminal is closed
        signal.signal(number, stop)
    try:
        for name, port, command in (
            ("mlflow", mlflow, mlflow_command(home, mlflow)),
            ("prefect", prefect, ["prefect", "server", "start", "--host", HOST, "--port", str(prefect)]),
        ):
            log = (logs / f"{name}-server.log").open("w")
            child = subprocess.Popen(
                [sys.executable, "-m", *command], env=env, stdout=log, stderr=log, start_new_session=True
            )
            children.append((name, f"http://{HOST}:{port}", child))
        for name, address, child in children:
            wait_for(address, child, logs / f"{name}-server.log")
            typer.echo(f"{name:<8} {address}{training_view(address) if name == 'mlflow' else ''}")
        typer.echo("Ctrl-C ends both.")
        while all(child.poll() is None for _, _, child in children):
            time.sleep(0.5)
    except KeyboardInterrupt:
        pass
    finally:
        end([child for _, _, child in children])


def environment(home: Path, prefect: int) -> dict[str, str]:
    """Environment of the servers. `prefect`: port of Prefect's API, which its web interface must know."""
    return {
        "PREFECT_HOME": str((home / "prefect").resolve()),
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_UI_API_URL": f"http://{HOST}:{prefect}/api",
    }


def mlflow_command(home: Path, port: int) -> list[str]:
    """Arguments of python -m for an MLflow server on the home's database and artifacts."""
    artifacts = (home / "mlartifacts").resolve().as_uri()
    options = ["--host", HOST, "--port", str(port), "--workers", "1"]
    stores = ["--backend-store-uri", tracking_uri(home), "--default-artifact-root", artifacts]
    return ["mlflow", "server", *options, *stores]


def end(children: list[subprocess.Popen[bytes]]) -> None:
    """Stop the servers with all their processes, forcibly after ten seconds."""
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
    for child in children:
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)


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
