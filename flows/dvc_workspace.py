"""Layout of the DVC workspace: data/raw, data/curated, data/quarantined, data/rounds, metrics.json and
plots/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ratchet.components.storage.store import write_atomic
from ratchet.tasks.data.versioning import commit, publish
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.locks import file_lock
from ratchet.tasks.tracking.results import headline_metrics

PARTS = ("fetch", "curate", "train", "evaluate")


def publish_outputs(pipeline: Pipeline, workspace: Path, parts: Sequence[str] = PARTS) -> None:
    """Publish the outputs of the given parts where `dvc.yaml` expects them. Links instead of copies where the
    file system allows it.
    """
    data, folder = workspace / "data", pipeline.run.path / "layout"
    if "fetch" in parts:
        publish(pipeline.artifact("raw").path, data / "raw")
    if "curate" in parts:
        publish(pipeline.artifact("curated").path, data / "curated")
        for stage, file in (("drafts", "quarantine.jsonl"), ("curated", "quarantined.jsonl")):
            if (pipeline.artifact(stage).path / file).exists():
                publish(pipeline.artifact(stage).path / file, folder / "quarantined" / file)
        publish(folder / "quarantined", data / "quarantined")
    if "train" in parts:
        groups = [
            name
            for name, stage in pipeline.stages.items()
            if stage.kind == "groups" and stage.part == "train"
        ]
        for name in groups:
            publish(pipeline.artifact(name).path, folder / "rounds" / name)
        if groups:
            publish(folder / "rounds", data / "rounds")
    if "evaluate" in parts and "evaluate" in pipeline.stages:
        results = json.loads((pipeline.artifact("evaluate").path / "results.json").read_text())
        write_atomic(workspace / "metrics.json", json.dumps(headline_metrics(results), indent=1) + "\n")
        pictures = pipeline.artifact("evaluate").path / "plots"
        if not pictures.is_dir():
            pictures = folder / "plots"
            pictures.mkdir(parents=True, exist_ok=True)
        publish(pictures, workspace / "plots")


def publish_and_commit(pipeline: Pipeline, workspace: Path) -> dict[str, str]:
    """Publish all outputs and run `dvc commit` at the end of a Prefect run, so that dvc.lock is the same as
    after `dvc repro`.

    Only for the recipe named in dvc.yaml (by name or file name); other recipes' data stays in the store.
    Returns {} for those.
    """
    stages = workspace / "dvc.yaml"
    named = re.search(r"ratchet stage train (\S+)", stages.read_text()) if stages.exists() else None
    if named is None or re.sub(r".*/|\.ya?ml$", "", named[1]) != pipeline.recipe.name:
        return {}
    with file_lock(
        pipeline.store.home / "workspace.lock", f"the DVC workspace {workspace}"
    ):  # two runs must not mix their files under data/
        publish_outputs(pipeline, workspace)
        return commit(workspace)
