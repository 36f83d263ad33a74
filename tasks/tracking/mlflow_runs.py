"""MLflow representation of a run, derived from its directory: a parent run, a child run per stage, a
grandchild per round.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import RecipeError
from ratchet.components.storage.store import MANIFEST, read_manifest
from ratchet.tasks.machine.system import samples_of
from ratchet.tasks.tracking.mlflow_text import flatten
from ratchet.tasks.tracking.outcome import markdown, outcome, tracked

ROOT = ""  # the key of the parent run
ROUND = re.compile(
    r"(?:rollout|annotate|select|optimise)_(\d+)"
)  # the stages of a round share one MLflow run
STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
SHOWN_FILES = (
    "report.html",
    "certificate.json",
    "summary.json",
    "validation.json",
    "results.json",
    "plots/*.png",
)


@dataclass
class MlflowRun:
    """Content of one MLflow run. `inputs`: data sets by name and role; `files`: growing metrics files."""

    name: str
    parent: str | None
    start: float
    end: float = 0.0
    status: str = "RUNNING"
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    inputs: dict[tuple[str, str], Path] = field(default_factory=dict)
    artifacts: list[Path] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def mlflow_runs(run_dir: Path, report: str | None = None) -> dict[str, MlflowRun]:
    """The MLflow runs by key (``, `sft`, `online/round-1`), parents first. `report`: URL of the evaluation
    report. `RecipeError` if it is not a run directory.
    """
    if not (run_dir / "run.json").exists() or not (run_dir / "recipe.yaml").exists():
        raise RecipeError(
            f"{run_dir} is not a run: it has no run.json and recipe.yaml; expected a directory under runs/"
        )
    state, (recipe, params) = (
        json.loads((run_dir / "run.json").read_text()),
        _recipe((run_dir / "recipe.yaml").read_text()),
    )
    found = outcome(run_dir)
    root = MlflowRun(
        run_dir.name,
        None,
        state["started"],
        state.get("ended", 0.0),
        STATUS.get(state["state"], "RUNNING"),
        dict(params),
        {
            "recipe": recipe["name"],
            "paper": recipe.get("paper", ""),
            "revision": state.get("revision", ""),
            "packages": json.dumps(state.get("packages", {})),
            **({"error": state["error"]} if state.get("error") else {}),
            "mlflow.note.content": markdown(
                found, recipe.get("about", ""), report if found["report"] else None
            ),
        },
        artifacts=[run_dir / "recipe.yaml"],
        files=[samples_of(run_dir)],
    )
    root.points.append(
        {
            "time": root.end,
            "metrics": {f"spent/{name}": value for name, value in (state.get("spent") or {}).items()},
        }
    )
    runs, complete = {ROOT: root}, dict[str, bool]()
    for name, key in state.get("stages", {}).items():
        product, work = (
            run_dir / "stages" / name,
            run_dir.parent.parent / "store" / ".work" / f"{name}-{key[:16]}",
        )
        manifest = read_manifest(product)
        number = int(match[1]) if (match := ROUND.fullmatch(name)) else 0
        at = f"online/round-{number}" if number else name
        complete[at] = complete.get(at, True) and manifest is not None
        if manifest is None and not work.is_dir():
            continue
        published = (product / MANIFEST).stat().st_mtime if manifest else work.stat().st_mtime
        meta, made_with = (manifest or {}).get("meta", {}), (manifest or {}).get("made_with", {})
        start = published - meta.get("seconds", 0.0)
        if number:
            runs.setdefault("online", MlflowRun("online", ROOT, start))
        run = runs.setdefault(
            at,
            MlflowRun(f"round-{number}", "online", start, tags={"iteration": str(number)})
            if number
            else MlflowRun(name, ROOT, start),
        )
        run.files += [
            (product.resolve() if manifest else work / "product") / "metrics.jsonl",
            samples_of(run_dir, name),
        ]
        if name == state.get("failed_stage") and state.get("error"):
            run.tags["error"] = state["error"]
        if manifest is None:
            continue
        does = made_with.get("does", name)
        run.end = max(run.end, published)
        run.tags |= {
            f"{does}.key": key,
            f"{does}.path": str(product.resolve()),
            "reused": str(start < state["started"]),
        }
        shown, numbers = (
            [file for one in SHOWN_FILES for file in sorted(product.resolve().glob(one))],
            tracked(does, meta),
        )
        run.artifacts += shown
        run.points.append({"step": number, "time": published, "metrics": numbers})
        if does == "evaluate":
            root.artifacts += shown
            root.points.append(
                {
                    "time": published,
                    "metrics": {name: value for name, value in numbers.items() if "/" not in name},
                }
            )
        for role, parent in made_with.get("inputs", {}).items():
            data = read_manifest(run_dir / "stages" / parent)
            if data is not None and data["kind"] in ("data", "groups"):
                for one in (run, root):
                    if parent not in {name for name, _ in one.inputs}:
                        one.inputs[parent, role] = (run_dir / "stages" / parent).resolve()
    for key, run in runs.items():
        if key != ROOT:
            whole = all(done for name, done in complete.items() if name == key or name.startswith(f"{key}/"))
            run.status, run.end = ("FINISHED", run.end) if whole else (root.status, root.end)
    if "online" in runs:
        runs["online"].end = max(run.end for key, run in runs.items() if key.startswith("online/"))
    return runs


@functools.lru_cache(maxsize=8)
def _recipe(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The recipe in a run's recipe.yaml, and the whole file as flat parameters."""
    tree = yaml.safe_load(text)
    return tree["recipe"], flatten(tree)
