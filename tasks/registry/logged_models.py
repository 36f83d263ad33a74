"""MLflow's logged models: the model behind a registered version, and its link to the run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.tasks.registry.mlmodel import write_mlmodel
from ratchet.tasks.tracking.server import allowed, cut, experiment_id, flatten

MARK = "ratchet.key"
EXTERNAL = "mlflow.model.isExternal"  # MLflow's tag of models without files
LINEAGE = "lineage.json"  # the full lineage, in the registered model


def logged_model(
    mlflow: Any,
    model_dir: Path,
    name: str,
    mark: str,
    lineage: Mapping[str, Any],
    run_id: str | None,
    external: bool,
    home: Path,
) -> str:
    """Id of a finished LoggedModel; reuses one from a killed attempt if finished, and removes an unfinished
    one.
    """
    experiment = mlflow.get_run(run_id).info.experiment_id if run_id else experiment_id(mlflow, home)
    kind = "true" if external else "false"
    for old in mlflow.search_logged_models([experiment], f"tags.`{MARK}` = '{mark}'"):
        if old.tags.get("external") == kind:
            if str(old.status) in ("READY", "LoggedModelStatus.READY"):
                return old.model_id
            mlflow.delete_logged_model(old.model_id)
    tags = {MARK: mark, "external": kind} | ({EXTERNAL: "true"} if external else {})
    params = {
        k: cut(v, 250)
        for k, v in flatten({"data": lineage.get("data", {}), "recipe": lineage.get("recipe", "")}).items()
    }
    model = mlflow.create_logged_model(experiment, name=name, source_run_id=run_id, tags=tags, params=params)
    if not external:
        mlflow.log_model_artifacts(model.model_id, str(model_dir))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / LINEAGE).write_text(json.dumps(lineage, indent=1))
        if external:  # the server requires an MLmodel file
            from mlflow.models.utils import get_external_mlflow_model_spec

            get_external_mlflow_model_spec(model).save(str(Path(folder) / "MLmodel"))
        else:
            write_mlmodel(model_dir, Path(folder), name=name, model_id=model.model_id, run_id=run_id)
        mlflow.log_model_artifacts(model.model_id, folder)
    mlflow.finalize_logged_model(model.model_id, "READY")
    return model.model_id


def link_to_run(mlflow: Any, run_id: str, model_id: str, metrics: Mapping[str, float]) -> None:
    """Add the model and its metrics to the run's page; the link last, since it marks completion."""
    from mlflow.entities import LoggedModelOutput, Metric

    outputs = mlflow.get_run(run_id).outputs
    if outputs and any(made.model_id == model_id for made in outputs.model_outputs):
        return
    now = int(datetime.now(UTC).timestamp() * 1000)
    if metrics:
        mlflow.log_batch(
            run_id,
            metrics=[Metric(allowed(k), float(v), now, 0, model_id=model_id) for k, v in metrics.items()],
        )
    mlflow.log_outputs(run_id, [LoggedModelOutput(model_id, 0)])
