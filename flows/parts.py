"""The parts of a run that `dvc.yaml` names, and the layout DVC versions: raw, curated, quarantined, rounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from components.errors import RecipeError, nearest
from components.store import write_atomic
from tasks.pipeline import Pipeline
from tasks.versioning import publish

PARTS = ("fetch", "curate", "train", "evaluate")


def run_part(part: str, recipe: str, *, home: Path, overrides: Sequence[str] = (), profile: str | None = None) -> None:
    """Make the stages of one part and lay their data out under `data/`. `train` is the flow."""
    if part not in PARTS:
        raise RecipeError(f"no part named {part!r}{nearest(part, PARTS)}")
    pipeline = Pipeline.open(recipe, home=home, overrides=overrides, profile=profile)
    if part == "fetch":
        for name in ("raw", *(n for n in pipeline.stages if n.startswith("model_"))):
            pipeline.make(name)
    elif part == "curate":
        for name in ("drafts", "curated"):
            pipeline.make(name)
    else:
        from flows.post_training import post_training

        post_training(recipe, home=str(home), overrides=list(overrides), profile=profile,
                      until="train" if part == "train" else "evaluate")
    lay_out(pipeline, Path.cwd(), (part,))


def lay_out(pipeline: Pipeline, workspace: Path, parts: Sequence[str] = PARTS) -> None:
    """Copy (or link) what the parts made to where DVC looks for it: data/, metrics.json and plots/."""
    data = workspace / "data"
    if "fetch" in parts:
        publish(pipeline.artifact("raw").path, data / "raw")
    if "curate" in parts:
        publish(pipeline.artifact("curated").path, data / "curated")
        publish(pipeline.artifact("curated").path / "quarantine", data / "quarantined")
    if "train" in parts:
        for name, stage in pipeline.stages.items():
            if stage.kind == "groups":
                publish(pipeline.artifact(name).path, data / "rounds" / name)
    if "evaluate" in parts and "evaluate" in pipeline.stages:
        made = pipeline.artifact("evaluate")
        results = json.loads((made.path / "results.json").read_text())
        write_atomic(workspace / "metrics.json", json.dumps(results["metrics"], indent=1, sort_keys=True) + "\n")
        write_atomic(workspace / "plots" / "rounds.json", json.dumps(results["rounds"], indent=1) + "\n")


