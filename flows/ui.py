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


def serve(home: Path) -> None:
    """Start both servers on 127.0.0.1, print their addresses, wait for Ctrl-C, stop both."""
    env = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    env.setdefault("PREFECT_HOME", str((home / "prefect").resolve()))
    mlflow, prefect = free_port(), free_port()
    artifacts = (home / "mlartifacts").resolve()
    env["PREFECT_UI_API_URL"] = f"http://127.0.0.1:{prefect}/api"
    commands = {
        f"http://127.0.0.1:{mlflow}": [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(mlflow),
            "--workers",
            "1",
            "--backend-store-uri",
            tracking_uri(home),
            "--default-artifact-root",
            artifacts.as_uri(),
        ],
        f"http://127.0.0.1:{prefect}": [
            sys.executable,
            "-m",
            "prefect",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(prefect),
        ],
    }
    logs = home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    children = []

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # stop the servers however the terminal is closed
        signal.signal(number, stop)
    try:
        for (address, command), name in zip(commands.items(), ("mlflow", "prefect"), strict=True):
            log = (logs / f"{name}-server.log").open("w")
            children.append(
                (
                    name,
                    address,
                    subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True),
                )
            )
        for name, address, child in children:
            wait_for(address, child, logs / f"{name}-server.log")
            typer.echo(f"{name:<8} {address}{training_view(address) if name == 'mlflow' else ''}")
        typer.echo("Ctrl-C ends both.")
        while all(child.poll() is None for _, _, child in children):
            time.sleep(0.5)
    except KeyboardInterrupt:
        pass
    finally:
        for _, _, child in children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
        for _, _, child in children:
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
        probe.bind(("127.0.0.1", 0))
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
