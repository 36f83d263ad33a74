"""MLflow representation of a run, derived from its directory: a parent run, a child run per stage, a
grandchild per round.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import RecipeError
from ratchet.components.storage.store import MANIFEST, read_manifest
from ratchet.tasks.machine.system import samples_of
from ratchet.tasks.tracking.outcome import markdown, outcome, stage_metrics
from ratchet.tasks.tracking.server import flatten

ROOT = ""  # the key of the parent run
ROUND = re.compile(r"(?:rollout|annotate|select|optimise)_(\d+)")  # stages of a round share an MLflow run
STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "waiting": "SCHEDULED"}
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
    state = json.loads((run_dir / "run.json").read_text())
    runs, complete = {ROOT: _root(run_dir, state, report)}, dict[str, bool]()
    for name, key in state.get("stages", {}).items():
        manifest = read_manifest(run_dir / "stages" / name)
        number = int(match[1]) if (match := ROUND.fullmatch(name)) else 0
        at = f"online/round-{number}" if number else name
        complete[at] = complete.get(at, True) and manifest is not None
        work = run_dir.parent.parent / "store" / ".work" / f"{name}-{key[:16]}"
        if manifest is None and not work.is_dir():
            continue
        product = (run_dir / "stages" / name).resolve() if manifest else work / "product"
        published = ((product / MANIFEST) if manifest else work).stat().st_mtime
        start = published - (manifest or {}).get("meta", {}).get("seconds", 0.0)
        if number:
            runs.setdefault("online", MlflowRun("online", ROOT, start))
            new = MlflowRun(f"round-{number}", "online", start, tags={"iteration": str(number)})
        else:
            new = MlflowRun(name, ROOT, start)
        run = runs.setdefault(at, new)
        run.files += [product / "metrics.jsonl", samples_of(run_dir, name)]
        if name == state.get("failed_stage") and state.get("error"):
            run.tags["error"] = state["error"]
        if manifest is not None:
            run.end = max(run.end, published)
            _add_product(run, runs[ROOT], run_dir, product, manifest, number, published)
            run.tags |= {"reused": str(start < state["started"])}
    for key, run in runs.items():
        if key != ROOT:
            whole = all(done for name, done in complete.items() if name == key or name.startswith(f"{key}/"))
            run.status, run.end = ("FINISHED", run.end) if whole else (runs[ROOT].status, runs[ROOT].end)
    if "online" in runs:
        runs["online"].end = max(run.end for key, run in runs.items() if key.startswith("online/"))
    return runs


def _root(run_dir: Path, state: Mapping[str, Any], report: str | None) -> MlflowRun:
    """The parent run: the whole recipe, revision and packages, the outcome as its description."""
    recipe, params = _recipe((run_dir / "recipe.yaml").read_text())
    found, end = outcome(run_dir), state.get("ended", 0.0)
    note = markdown(found, recipe.get("about", ""), report if found["report"] else None)
    tags = {
        "recipe": recipe["name"],
        "paper": recipe.get("paper", ""),
        "revision": state.get("revision", ""),
        "packages": json.dumps(state.get("packages", {})),
        **({"error": state["error"]} if state.get("error") else {}),
        "mlflow.note.content": note,
    }
    status = STATUS.get(state["state"], "RUNNING")
    root = MlflowRun(run_dir.name, None, state["started"], end, status, dict(params), tags)
    root.artifacts, root.files = [run_dir / "recipe.yaml"], [samples_of(run_dir)]
    spent = {f"spent/{name}": value for name, value in (state.get("spent") or {}).items()}
    root.points.append({"time": end, "metrics": spent})
    return root


def _add_product(
    run: MlflowRun,
    root: MlflowRun,
    run_dir: Path,
    product: Path,
    manifest: Mapping[str, Any],
    number: int,
    published: float,
) -> None:
    """Add a finished stage to its MLflow run: key, path, shown files, metrics at step `number`, and the data
    sets it read; the evaluation and the data sets also to `root`.
    """
    does = manifest["made_with"].get("does", manifest["stage"])
    run.tags |= {f"{does}.key": manifest["key"], f"{does}.path": str(product)}
    shown = [file for one in SHOWN_FILES for file in sorted(product.glob(one))]
    numbers = stage_metrics(does, manifest["meta"])
    run.artifacts += shown
    run.points.append({"step": number, "time": published, "metrics": numbers})
    if does == "evaluate":
        root.artifacts += shown
        final = {name: value for name, value in numbers.items() if "/" not in name}
        root.points.append({"time": published, "metrics": final})
    for role, parent in manifest["made_with"].get("inputs", {}).items():
        data = read_manifest(run_dir / "stages" / parent)
        if data is not None and data["kind"] in ("data", "groups"):
            for one in (run, root):
                if parent not in {name for name, _ in one.inputs}:
                    one.inputs[parent, role] = (run_dir / "stages" / parent).resolve()


@functools.lru_cache(maxsize=8)
def _recipe(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The recipe in a run's recipe.yaml, and the whole file as flat parameters."""
    tree = yaml.safe_load(text)
    return tree["recipe"], flatten(tree)
