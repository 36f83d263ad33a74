"""The MLflow server, or the sqlite file in its place: where it is, how long it may take, and its errors in one sentence."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet.components.errors import RatchetError, ServiceError

DEFAULTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
            "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
"""Of this process, where the user has set nothing: MLflow's own defaults retry for minutes."""
KIND = {"mlflow.experimentKind": "custom_model_development"}  # the experiment's page opens on its runs, not on traces
TRAINING = "workflowType=machine_learning"  # in an address: the same, whatever page the browser saw last


def tracking_uri(home: Path) -> str:
    """`MLFLOW_TRACKING_URI` when set, else the sqlite file of `home`."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(home / 'mlflow.db').resolve()}"


def client(home: Path) -> Any:
    """An `MlflowClient` on `tracking_uri(home)`. Imports mlflow (5 s); a new sqlite file takes 4 s more."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of every table of a new database
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # and of every retry, where we say once that the server is away

    uri = tracking_uri(home)
    if uri.startswith("sqlite:"):
        home.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri, registry_uri=os.environ.get("MLFLOW_REGISTRY_URI", uri))


@contextlib.contextmanager
def service(doing: str, home: Path) -> Iterator[Any]:
    """A client with short time-outs; whatever MLflow raises becomes a `ServiceError` that says where."""
    with reached(f"{doing} at {tracking_uri(home)}"):
        yield client(home)


@contextlib.contextmanager
def reached(doing: str) -> Iterator[None]:
    """What MLflow raises, as a `ServiceError` that begins with `doing`; errors of ours stay as they are."""
    try:
        yield
    except RatchetError:
        raise
    except Exception as error:
        text = (str(error).splitlines() or [""])[0][:400]
        raise ServiceError(f"{doing}: {type(error).__name__}: {text}; check the server or MLFLOW_TRACKING_URI and run again, "
                           "nothing is lost") from error


def experiment_name(name: str = "ratchet") -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", name)


def experiment_id(mlflow: Any, home: Path, name: str = "ratchet") -> str:
    """The experiment's id, made when missing; beside the default sqlite file its artifacts lie in `home`."""
    name = experiment_name(name)
    found = mlflow.get_experiment_by_name(name)
    if found:
        if not set(KIND) <= set(found.tags):
            mlflow.set_experiment_tag(found.experiment_id, *next(iter(KIND.items())))
        return found.experiment_id
    local = None if os.environ.get("MLFLOW_TRACKING_URI") else (home / "mlartifacts").resolve().as_uri()
    try:
        return mlflow.create_experiment(name, artifact_location=local, tags=KIND)
    except Exception:
        found = mlflow.get_experiment_by_name(name)  # another process was quicker
        if found is None:
            raise
        return found.experiment_id
