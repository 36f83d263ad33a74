"""Comparison of two runs: differences in recipe, code, packages, stages and results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.storage.store import content, read_manifest
from ratchet.tasks.tracking.results import as_text, paired_difference, read_evaluation, why_not_comparable
from ratchet.tasks.tracking.server import flatten

Change = tuple[str, str, str]  # name, value in the first run, value in the second; "" if missing


@dataclass(frozen=True)
class Differences:
    """`stages`: name, comparison, reason. `scores`: name, both means, and the paired interval of second −
    first, or why there is none. `metrics`: all other metrics.
    """

    recipe: list[Change]
    code: list[Change]
    packages: list[Change]
    stages: list[tuple[str, str, str]]
    scores: list[tuple[str, float, float, dict[str, Any] | str]]
    metrics: list[Change]


def differences(first: Path, other: Path) -> Differences:
    """Compare two run directories, finished or not."""
    states = [json.loads((run / "run.json").read_text()) for run in (first, other)]
    recipes = [flatten(yaml.safe_load((run / "recipe.yaml").read_text()) or {}) for run in (first, other)]
    results = [read_evaluation(first), read_evaluation(other)]
    stages = dict.fromkeys(name for state in states for name in state.get("stages", {}))
    scores = []
    for score in dict.fromkeys([*results[0].get("per_prompt", {}), *results[1].get("per_prompt", {})]):
        each = [r.get("per_prompt", {}).get(score) for r in results]
        one, two = (sum(values) / len(values) if values else float("nan") for values in each)
        why_not = why_not_comparable(results[0], results[1], score)
        scores.append((score, one, two, why_not or paired_difference(results[1], results[0], score)))
    return Differences(
        recipe=_changes(*recipes),
        code=_changes(*({"revision": s.get("revision", "")} for s in states)),
        packages=_changes(*(s.get("packages", {}) for s in states)),
        stages=[_stage(first, other, name) for name in stages],
        scores=scores,
        metrics=_changes(*(as_text(r.get("metrics", {})) for r in results)),
    )


def _changes(first: dict[str, Any], other: dict[str, Any]) -> list[Change]:
    return [
        (name, str(first.get(name, "")), str(other.get(name, "")))
        for name in dict.fromkeys([*first, *other])
        if first.get(name) != other.get(name)
    ]


def _stage(first: Path, other: Path, name: str) -> tuple[str, str, str]:
    """Same artifact, equal content, or different content with the nearest reason."""
    a, b = (read_manifest(run / "stages" / name) for run in (first, other))
    if a is None or b is None:
        return name, "in neither" if a is b else "only in the other" if a is None else "only in the first", ""
    if a["key"] == b["key"]:
        return name, "same artifact", ""
    return name, "recomputed, equal" if content(a["files"]) == content(b["files"]) else "differs", _why(a, b)


def _why(a: dict[str, Any], b: dict[str, Any]) -> str:
    """Keys differ by options, inputs or source code; if not the first two, it is the third."""
    one, two = (manifest["made_with"].get("options", {}) for manifest in (a, b))
    names = [name for name, *_ in _changes(one, two) if name != "resolved"]
    reasons = [f"options: {', '.join(names)}"] if names else []
    reasons += ["inputs"] if a["parents"] != b["parents"] else []
    return "; ".join(reasons) or "source code"
