"""Layout of the DVC workspace: data/raw, data/curated, data/quarantined, data/rounds, metrics.json and
plots/.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ratchet.components.errors import RecipeError
from ratchet.components.storage.store import write_atomic
from ratchet.tasks.data.versioning import commit, outputs, publish, read_stages
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.locks import file_lock
from ratchet.tasks.tracking.results import headline_metrics

log = logging.getLogger("ratchet.versioning")
PARTS = ("fetch", "curate", "train", "evaluate")


def check_outputs(pipeline: Pipeline, workspace: Path, part: str) -> None:
    """`RecipeError` before outputs of a part replace files that are not DVC's: dvc.yaml must have the part as
    a stage, and no source may lie in an output.
    """
    stages = read_stages(workspace)
    if part not in stages:
        raise RecipeError(
            f"{workspace} has no dvc.yaml with a stage {part!r}, whose outputs `ratchet stage {part}` "
            "replaces; without DVC use `ratchet run`"
        )
    if source := source_in_outputs(pipeline, workspace):
        raise RecipeError(f"{source} lies in an output of dvc.yaml, which the stage would replace; move it")


def source_in_outputs(pipeline: Pipeline, workspace: Path) -> str:
    """A source of data or of a model that lies in an output of dvc.yaml, or contains one; empty if none
    does.
    """
    replaced = [(workspace / path).resolve() for path in owned(workspace)]
    sources = [*pipeline.recipe.data.every_source, *pipeline.recipe.models.values()]
    for address in (one.source for one in sources):
        file = (workspace / address[5:]).resolve() if address.startswith("path:") else None
        if file and any(path in (file, *file.parents) or file in path.parents for path in replaced):
            return address
    return ""


def owned(workspace: Path) -> set[str]:
    """Paths of the outputs of dvc.yaml."""
    return {os.path.normpath(path) for stage in read_stages(workspace).values() for path in outputs(stage)}


def publish_outputs(pipeline: Pipeline, workspace: Path, parts: Sequence[str] = PARTS) -> None:
    """Publish the outputs of the given parts that `dvc.yaml` lists; other files are not DVC's and stay. Links
    instead of copies where the file system allows it.
    """
    folder, listed = pipeline.run.path / "layout", owned(workspace)

    def place(source: Path, path: str) -> None:
        if path in listed:
            publish(source, workspace / path)

    if "fetch" in parts:
        place(pipeline.artifact("raw").path, "data/raw")
    if "curate" in parts:
        place(pipeline.artifact("curated").path, "data/curated")
        for stage, file in (("drafts", "quarantine.jsonl"), ("curated", "quarantined.jsonl")):
            if (pipeline.artifact(stage).path / file).exists():
                publish(pipeline.artifact(stage).path / file, folder / "quarantined" / file)
        place(folder / "quarantined", "data/quarantined")
    if "train" in parts:
        rounds = folder / "rounds"
        rounds.mkdir(parents=True, exist_ok=True)  # empty for a recipe without groups
        for name, stage in pipeline.stages.items():
            if stage.kind == "groups" and stage.part == "train":
                publish(pipeline.artifact(name).path, rounds / name)
        place(rounds, "data/rounds")
    if "evaluate" in parts and "evaluate" in pipeline.stages:
        results = json.loads((pipeline.artifact("evaluate").path / "results.json").read_text())
        if "metrics.json" in listed:
            write_atomic(workspace / "metrics.json", json.dumps(headline_metrics(results), indent=1) + "\n")
        pictures = pipeline.artifact("evaluate").path / "plots"
        if not pictures.is_dir():
            pictures = folder / "plots"
            pictures.mkdir(parents=True, exist_ok=True)
        place(pictures, "plots")


def publish_and_commit(pipeline: Pipeline, workspace: Path) -> dict[str, str]:
    """Publish all outputs and run `dvc commit` at the end of a Prefect run, so that dvc.lock is the same as
    after `dvc repro`. Returns {} for a run that is not the one of dvc.yaml, or has a source in an output of
    dvc.yaml, which would be replaced; its data stays in the store.
    """
    if not is_of_workspace(pipeline, workspace):
        return {}
    if source := source_in_outputs(pipeline, workspace):
        log.warning("%s lies in an output of dvc.yaml: DVC does not record the data of this run", source)
        return {}
    with file_lock(
        pipeline.store.home / "workspace.lock", f"the DVC workspace {workspace}"
    ):  # two runs must not mix their files under data/
        publish_outputs(pipeline, workspace)
        return commit(workspace)


def is_of_workspace(pipeline: Pipeline, workspace: Path) -> bool:
    """Whether the run makes what dvc.yaml describes: its recipe, with the settings of its `train` command. A
    run with other settings (`--set`, `--profile`, `--limit`) must not be recorded as output of that command.
    """
    command = str(read_stages(workspace).get("train", {}).get("cmd", ""))
    if "ratchet stage train " not in command:
        return False
    named, overrides, profile = "", list[str](), None
    words = iter(shlex.split(command.partition("ratchet stage train ")[2]))
    for word in words:
        if not word.startswith("-"):
            named = named or word
            continue
        option, _, value = word.partition("=") if word.startswith("--") else (word, "", "")
        value = value or next(words, "")
        overrides += [value] if option == "--set" else []
        profile = value if option == "--profile" else profile
    if re.sub(r".*/|\.ya?ml$", "", named) != pipeline.recipe.name:
        return False
    described = Pipeline.open(named, home=pipeline.store.home, overrides=overrides, profile=profile)
    if {s.key for s in described.stages.values()} != {s.key for s in pipeline.stages.values()}:
        log.warning(
            "run %s has other settings than dvc.yaml: DVC does not record its data", pipeline.run.name
        )
        return False
    return True
