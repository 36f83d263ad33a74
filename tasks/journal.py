"""A run's journal: what the flow said of it, one JSON line an event, and the runs MLflow should therefore show."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = ""  # the key of the parent run in the journal
TAG_LIMIT = 8000  # MLflow's own


@dataclass
class Wanted:
    """One run as the journal wants it to be."""

    name: str
    parent: str | None
    start: float
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    status: str = "RUNNING"
    end: float = 0.0


def read_journal(run_dir: Path) -> tuple[dict[str, Wanted], str]:
    """The runs a journal describes, parents first, and the experiment's name. A torn last line is ignored."""
    runs: dict[str, Wanted] = {}
    experiment = "ratchet"
    for event in lines((run_dir / "tracking" / "journal.jsonl").read_bytes()):
        kind, key = event["event"], event["key"]
        if kind == "open":
            experiment = event.get("experiment", experiment)
            run = runs.setdefault(key, Wanted(event["name"], event.get("parent"), event["time"], params=event["params"]))
            run.status = "RUNNING"
            run.tags |= event["tags"]
            run.tags["attempt"] = str(int(run.tags.get("attempt", 0)) + 1)
            if changed := sorted(k for k, v in event["params"].items() if run.params.get(k) != v):
                run.tags["params_changed"] = cut(", ".join(changed), TAG_LIMIT)  # MLflow's parameters cannot change
            continue
        run = runs[key]
        if kind == "follow" and event["path"] not in run.files:
            run.files.append(event["path"])
        elif kind == "metrics":
            run.points.append(event)
        elif kind == "input":
            run.inputs.append(event)
        elif kind == "artifact" and event["path"] not in run.artifacts:
            run.artifacts.append(event["path"])
        elif kind == "tags":
            run.tags |= event["tags"]
        elif kind == "close":
            run.status, run.end = event["status"], event["time"]
    return runs, experiment


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings and lists of mappings -> dotted names (`stages.0.lr`); other values as JSON text."""
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
    """`text` within `limit` characters; a cut one says so at its end."""
    note = f" ... [cut, {len(text)} characters]"
    return text if len(text) <= limit else text[: limit - len(note)] + note


def allowed(name: str) -> str:
    """MLflow allows letters, digits and `_-. :/` in names of metrics and parameters, at most 250."""
    return re.sub(r"[^\w\-. :/]", "_", str(name))[:250]


def texts(tags: Mapping[str, Any] | None) -> dict[str, str]:
    """Tags as MLflow wants them: text as it is, everything else as JSON."""
    return {k: v if isinstance(v, str) else json.dumps(v, default=str) for k, v in (tags or {}).items()}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's mapping; empty when there is none. Written whole by rename, so never half."""
    return json.loads(path.read_text()) if path.exists() else {}


def lines(data: bytes) -> list[dict[str, Any]]:
    """Complete JSON lines; one that a crash tore is left out."""
    found = []
    for line in data.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [one for one in found if isinstance(one, dict)]
