"""Connection to the MLflow server or the local sqlite file: address, timeouts, error conversion, and names,
parameters and tags within MLflow's limits.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import RatchetError, RecipeError, ServiceError

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_UV_AUTO_DETECT": "false",
}
"""Defaults for this process: MLflow's own retry for minutes, and copy a uv.lock of the working directory into
models. Variables set by the user take precedence.
"""
# MLflow 3.17 opens on runs by the URL alone (TRAINING)
KIND = {"mlflow.experimentKind": "custom_model_development"}
TRAINING = "workflowType=machine_learning"  # URL parameter that selects this view


def tracking_uri(home: Path) -> str:
    """`MLFLOW_TRACKING_URI` if set, else the sqlite file in `home`. `RecipeError` if its path cannot be
    written as an address.
    """
    if given := os.environ.get("MLFLOW_TRACKING_URI"):
        return given
    file = (home / "mlflow.db").resolve()
    if "?" in str(file):
        raise RecipeError(
            f"--home {home}: got a path with '?', after which a database address has options; "
            "choose another folder, or set MLFLOW_TRACKING_URI"
        )
    return f"sqlite:///{file}"


def client(home: Path) -> MlflowClient:
    """An `MlflowClient` for `tracking_uri(home)`. Importing mlflow takes 5 s, creating a sqlite file 4 s."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # they log every table of a new database
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # every retry; we log once that nothing answers
    uri = tracking_uri(home)
    if uri.startswith("sqlite:"):
        home.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri, registry_uri=os.environ.get("MLFLOW_REGISTRY_URI", uri))


@contextlib.contextmanager
def service(doing: str, home: Path) -> Iterator[MlflowClient]:
    """Context with a client; MLflow errors become a `ServiceError` with what was done, and the address."""
    try:
        yield client(home)
    except RatchetError:
        raise
    except Exception as error:
        text = (str(error).splitlines() or [""])[0][:400]
        advice = "check the server or MLFLOW_TRACKING_URI and run again, nothing is lost"
        where = f"{doing} at {tracking_uri(home)}"
        raise ServiceError(f"{where}: {type(error).__name__}: {text}; {advice}") from error


def experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", "ratchet")


def experiment_id(mlflow: MlflowClient, home: Path) -> str:
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


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings and lists of mappings -> dotted names (`stages.0.lr`); other values as JSON."""
    flat: dict[str, str] = {}
    for name, value in tree.items():
        path = allowed(f"{prefix}{name}")
        if isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value):
            value = {str(i): v for i, v in enumerate(value)}
        if isinstance(value, Mapping) and value:
            flat |= flatten({str(k): v for k, v in value.items()}, f"{path}.")
        else:
            flat[path] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def cut(text: str, limit: int) -> str:
    """Truncate to `limit` characters, with a note at the end."""
    note = f" ... [cut, {len(text)} characters]"
    return text if len(text) <= limit else text[: limit - len(note)] + note


def allowed(name: str) -> str:
    """Name with only MLflow's allowed characters (letters, digits, `_-. :/`), at most 250."""
    return re.sub(r"[^\w\-. :/]", "_", str(name))[:250]
