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
SHOWN = ("report.html", "certificate.json", "summary.json", "validation.json", "results.json", "plots/*.png")


@dataclass
class MlflowRun:
    """Content of one MLflow run. `inputs`: data set -> its role and directory; `files`: growing metrics
    files.
    """

    name: str
    parent: str | None
    start: float
    end: float = 0.0
    status: str = "FINISHED"
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, tuple[str, Path]] = field(default_factory=dict)
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
    root, unfinished = _root(run_dir, state, report), set[str]()
    runs = {ROOT: root}
    for name, key in state.get("stages", {}).items():
        link, work = run_dir / "stages" / name, run_dir.parents[1] / "store" / ".work" / f"{name}-{key[:16]}"
        number = int(match[1]) if (match := ROUND.fullmatch(name)) else 0
        parent, title = ("online", f"round-{number}") if number else (ROOT, name)
        at = f"{parent}/{title}" if number else name
        manifest = read_manifest(link)
        if manifest is None:
            unfinished |= {parent, at}
            if not work.is_dir():
                continue
        product = link.resolve() if manifest else work / "product"
        published = ((product / MANIFEST) if manifest else work).stat().st_mtime
        start = published - (manifest or {}).get("meta", {}).get("seconds", 0.0)
        runs.setdefault(parent, MlflowRun(parent, ROOT, start))
        run = runs.setdefault(at, MlflowRun(title, parent, start))
        run.files += [product / "metrics.jsonl", samples_of(run_dir, name)]
        if number:
            run.tags["iteration"] = str(number)
        if name == state.get("failed_stage") and state.get("error"):
            run.tags["error"] = state["error"]
        if manifest is None:
            continue
        does = manifest["made_with"].get("does", name)
        run.tags |= {f"{does}.key": manifest["key"], f"{does}.path": str(product)}
        run.tags["reused"] = str(start < state["started"])
        shown = [file for pattern in SHOWN for file in sorted(product.glob(pattern))]
        numbers = stage_metrics(does, manifest["meta"])
        run.artifacts += shown
        run.points.append({"step": number, "time": published, "metrics": numbers})
        if does == "evaluate":
            root.artifacts += shown
            final = {metric: value for metric, value in numbers.items() if "/" not in metric}
            root.points.append({"time": published, "metrics": final})
        for role, made_by in manifest["made_with"].get("inputs", {}).items():
            source = run_dir / "stages" / made_by
            if (data := read_manifest(source)) and data["kind"] in ("data", "groups"):
                for one in (run, root):
                    one.inputs.setdefault(made_by, (role, source.resolve()))
        for one in {parent, at} - {ROOT}:
            runs[one].end = max(runs[one].end, published)
    for key in unfinished & runs.keys():
        runs[key].status, runs[key].end = root.status, root.end
    return runs


def _root(run_dir: Path, state: Mapping[str, Any], report: str | None) -> MlflowRun:
    """The parent run: the whole recipe, revision and packages, the outcome as its description."""
    recipe, params = _recipe((run_dir / "recipe.yaml").read_text())
    found, end = outcome(run_dir), state.get("ended", 0.0)
    tags = {
        "recipe": recipe["name"],
        "paper": recipe.get("paper", ""),
        "revision": state.get("revision", ""),
        "packages": json.dumps(state.get("packages", {})),
        **({"error": state["error"]} if state.get("error") else {}),
        "mlflow.note.content": markdown(found, recipe.get("about", ""), report if found["report"] else None),
    }
    spent = {f"spent/{name}": value for name, value in (state.get("spent") or {}).items()}
    return MlflowRun(
        run_dir.name,
        None,
        state["started"],
        end,
        STATUS.get(state["state"], "RUNNING"),
        params=dict(params),
        tags=tags,
        artifacts=[run_dir / "recipe.yaml"],
        points=[{"time": end, "metrics": spent}],
        files=[samples_of(run_dir)],
    )


@functools.lru_cache(maxsize=8)
def _recipe(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The recipe in a run's recipe.yaml, and the whole file as flat parameters."""
    tree = yaml.safe_load(text)
    return tree["recipe"], flatten(tree)
