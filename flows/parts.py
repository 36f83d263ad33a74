"""The parts of a run that `dvc.yaml` names, and the layout DVC versions: raw, curated, quarantined, rounds."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ratchet.components.storage.store import write_atomic
from ratchet.tasks.data.versioning import commit, publish
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.locks import file_lock
from ratchet.tasks.tracking.results import figures

PARTS = ("fetch", "curate", "train", "evaluate")


def lay_out(pipeline: Pipeline, workspace: Path, parts: Sequence[str] = PARTS) -> None:
    """Lay what the parts made out where DVC looks for it: data/, metrics.json and plots/. Links where the disk allows."""
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
        groups = [name for name, stage in pipeline.stages.items() if stage.kind == "groups"]
        for name in groups:
            publish(pipeline.artifact(name).path, folder / "rounds" / name)
        if groups:
            publish(folder / "rounds", data / "rounds")
    if "evaluate" in parts and "evaluate" in pipeline.stages:
        results = json.loads((pipeline.artifact("evaluate").path / "results.json").read_text())
        write_atomic(workspace / "metrics.json", json.dumps(figures(results), indent=1) + "\n")
        pictures = pipeline.artifact("evaluate").path / "plots"
        if not pictures.is_dir():
            pictures = folder / "plots"
            pictures.mkdir(parents=True, exist_ok=True)
        publish(pictures, workspace / "plots")


def version(pipeline: Pipeline, workspace: Path) -> dict[str, str]:
    """What a flow under Prefect ends with: lay everything out and `dvc commit`, so dvc.lock is as true as after `dvc repro`.

    Only the recipe that dvc.yaml names, by its name or its file's, is versioned here; another recipe's data stays in the store alone.
    """
    stages = workspace / "dvc.yaml"
    named = re.search(r"ratchet stage train (\S+)", stages.read_text()) if stages.exists() else None
    if named is None or re.sub(r".*/|\.ya?ml$", "", named[1]) != pipeline.recipe.name:
        return {}
    with file_lock(pipeline.store.home / "workspace.lock", f"the DVC workspace {workspace}"):  # else two runs would mix under data/
        lay_out(pipeline, workspace)
        return commit(workspace)
