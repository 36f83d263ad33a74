"""Connection to the MLflow server or the local sqlite file: address, timeouts, error conversion."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet.components.errors import RatchetError, ServiceError

DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""Defaults for this process: MLflow's own retry for minutes. Variables set by the user take precedence."""
KIND = {
    "mlflow.experimentKind": "custom_model_development"
}  # MLflow 3.17 opens on runs by the URL alone (TRAINING)
TRAINING = "workflowType=machine_learning"  # URL parameter that selects this view


def tracking_uri(home: Path) -> str:
    """`MLFLOW_TRACKING_URI` if set, else the sqlite file in `home`."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(home / 'mlflow.db').resolve()}"


def client(home: Path) -> Any:
    """An `MlflowClient` for `tracking_uri(home)`. Importing mlflow takes 5 s, creating a sqlite file 4 s."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs every table of a new database
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(
        logging.ERROR
    )  # and every retry; we log once that the server is unreachable

    uri = tracking_uri(home)
    if uri.startswith("sqlite:"):
        home.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri, registry_uri=os.environ.get("MLFLOW_REGISTRY_URI", uri))


@contextlib.contextmanager
def service(doing: str, home: Path) -> Iterator[Any]:
    """Context with a client; MLflow errors become a `ServiceError` with the address."""
    with reached(f"{doing} at {tracking_uri(home)}"):
        yield client(home)


@contextlib.contextmanager
def reached(doing: str) -> Iterator[None]:
    """Convert MLflow errors to a `ServiceError` that starts with `doing`; `RatchetError`s pass."""
    try:
        yield
    except RatchetError:
        raise
    except Exception as error:
        text = (str(error).splitlines() or [""])[0][:400]
        raise ServiceError(
            f"{doing}: {type(error).__name__}: {text}; check the server or MLFLOW_TRACKING_URI and run "
            "again, "
            "nothing is lost"
        ) from error


def experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", "ratchet")


def experiment_id(mlflow: Any, home: Path) -> str:
    """Id of the experiment, created if missing; with the sqlite file, its artifacts are stored in `home`."""
    name = experiment_name()
    found = mlflow.get_experiment_by_name(name)
    if found:
        if not set(KIND) <= set(found.tags):
            mlflow.set_experiment_tag(found.experiment_id, *next(iter(KIND.items())))
        return found.experiment_id
    local = None if os.environ.get("MLFLOW_TRACKING_URI") else (home / "mlartifacts").resolve().as_uri()
    try:
        return mlflow.create_experiment(name, artifact_location=local, tags=KIND)
    except Exception:
        found = mlflow.get_experiment_by_name(name)  # created by another process meanwhile
        if found is None:
            raise
        return found.experiment_id
