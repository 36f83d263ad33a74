"""Summary of a run from its directory: stages, gates, registered versions, champion; for failed runs the
error and log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import read_manifest
from ratchet.tasks.tracking.counts import record_counts


def run_files(home: Path) -> list[Path]:
    """`run.json` of every run, most recently changed last."""
    return sorted((home / "runs").glob("*/run.json"), key=lambda file: file.stat().st_mtime)


def run_at(name: str, home: Path) -> Path | None:
    """Directory of the run with this name or path; None if there is none."""
    paths = (home / "runs" / name, Path(name))
    return next((path for path in paths if (path / "run.json").is_file()), None)


def find_run(name: str | None, home: Path) -> Path:
    """Directory of the run with this name or path; without a name, of the newest run. `RecipeError` for an
    unknown run suggests the closest name.
    """
    known = run_files(home)
    if name is None and known:
        return known[-1].parent
    if name is None:
        raise RecipeError(f"there is no run under {home / 'runs'} yet; start one with `ratchet run instruct`")
    if (path := run_at(name, home)) is not None:
        return path
    newest = ", ".join(file.parent.name for file in known[:-4:-1])
    raise RecipeError(
        f"no run {name!r} under {home / 'runs'}{nearest(name, [file.parent.name for file in known])}"
        + (f"; the newest are {newest}; `ratchet runs` lists all" if known else "; there is no run yet")
    )


def outcome(run: Path) -> dict[str, Any]:
    """Content of `ratchet show --json`. `state`: running, waiting (for people to label), interrupted (the
    process died), finished, stopped (by the user) or failed. `stages`: list of {name, key, made (whether its
    output exists), meta}. `gates`: list of {name, passed, why}. `registered`: stage → `model:version`.
    `not_required`: stages of reward models that were optimised against though no accuracy was required of
    them. `champion`: whether the final model became champion, and `why_not`. `error`, `failed_stage`, `log`
    of a failed run. Unknown values are None or empty.
    """
    run = run.resolve()
    state = json.loads((run / "run.json").read_text())
    verdict = state.get("verdict") or _read(run / "stages" / "evaluate" / "results.json").get("verdict") or {}
    judged = zip(verdict.get("gates", {}).items(), verdict.get("reasons", []), strict=False)
    gates = [
        {"name": name, "passed": passed, "why": reason.partition(", ")[2]}
        for (name, passed), reason in judged
    ]
    alive = RunDirectory(run.parent.parent, run.name).alive()
    failed = state.get("failed_stage")
    log, report = run / "logs" / f"{failed}.log", run / "stages" / "evaluate" / "report.html"
    return {
        "run": run.name,
        "path": str(run),
        "recipe": state.get("recipe"),
        "revision": state.get("revision", ""),
        "state": "interrupted" if state.get("state") == "running" and not alive else state.get("state"),
        "started": _date(state.get("started")),
        "ended": _date(state.get("ended")),
        "stages": [_stage(run, name, key) for name, key in state.get("stages", {}).items()],
        "error": state.get("error"),
        "failed_stage": failed,
        "log": str(log) if failed and log.exists() else None,
        "not_required": state.get("not_required", []),
        "passed": verdict.get("passed") if gates else None,
        "gates": gates,
        "registered": state.get("registered") or {},
        "postponed": state.get("postponed"),
        "champion": state.get("champion"),
        "why_not": _why_not(state.get("champion"), verdict, gates),
        "spent": state.get("spent") or {},
        "report": str(report.resolve()) if report.exists() else None,
        "drift": _read(run / "drift.json"),
    }


def _stage(run: Path, name: str, key: str) -> dict[str, Any]:
    manifest = read_manifest(run / "stages" / name)
    return {"name": name, "key": key, "made": manifest is not None, "meta": (manifest or {}).get("meta", {})}


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def _why_not(champion: bool | None, verdict: Mapping[str, Any], gates: Sequence[Mapping[str, Any]]) -> str:
    """Why the final version is not champion; empty if it is, or if nothing was registered."""
    if champion is not False or not verdict:
        return ""
    if failed := [gate["name"] for gate in gates if not gate["passed"]]:
        return f"{len(failed)} of {len(gates)} gates failed ({', '.join(failed)})"
    return "; ".join(verdict.get("reasons", [])[len(gates) :]) or "it was rolled back before"


def _date(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def short_result(found: Mapping[str, Any]) -> str:
    """The result of a run in a few words, for tables."""
    if found["state"] == "failed":
        return f"failed at {found['failed_stage']}" if found["failed_stage"] else "failed"
    if found["champion"]:
        return "champion"
    failed = sum(not gate["passed"] for gate in found["gates"])
    if failed:
        return f"{failed} of {len(found['gates'])} gates failed"
    if found["gates"]:
        return "gates passed, not champion" if found["champion"] is False else "gates passed"
    return "no gates" if found["registered"] else ""


def lines_of(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, text) lines on error, gates, versions and champion, for `run` and `show`."""
    lines: list[tuple[str, str]] = []
    where = f" (stage {found['failed_stage']})" if found["failed_stage"] else ""
    if found["state"] in ("stopped", "interrupted"):
        how = "by Ctrl-C or a signal" if found["state"] == "stopped" else "its process ended"
        lines.append(
            ("stopped", f"{how}{where}; finished stages and checkpoints are kept, the same command continues")
        )
    elif found["state"] == "failed" and found["error"]:
        lines.append(("error", found["error"].replace("\n", " ") + where))
    if found["state"] == "waiting":
        lines.append(("waits", f"for people: `ratchet label {found['run']}` serves the page"))
    lines += [("log", found["log"])] if found["log"] else []
    lines += [("WARNING", text) for text in _not_required(found)]
    if gates := found["gates"]:
        failed = sum(not gate["passed"] for gate in gates)
        lines.append(("gates", f"{failed} of {len(gates)} failed" if failed else f"all {len(gates)} passed"))
        lines += [
            ("", f"{'✓' if gate['passed'] else '✗'} {gate['name']}: {gate['why']}")
            for gate in sorted(gates, key=lambda g: g["passed"])
        ]
    elif found["registered"]:
        lines.append(("gates", "none in the recipe (register.gates)"))
    if found["postponed"]:
        lines.append(("registered", f"not yet: {found['postponed']}"))
    elif found["registered"]:
        by_model: dict[str, list[str]] = {}
        for stage, version in found["registered"].items():
            model, _, number = version.rpartition(":")
            by_model.setdefault(model, []).append(f"{number} ({stage})")
        versions = (f"{model} version {', '.join(numbers)}" for model, numbers in by_model.items())
        lines.append(("registered", "; ".join(versions)))
    if found["champion"] is not None:
        lines.append(("champion", "yes" if found["champion"] else f"no: {found['why_not']}"))
    return lines


def _not_required(found: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each trained reward model that is optimised against and of which no accuracy was
    required, with what was measured.
    """
    from ratchet.components.evaluation.certificate import CHANCE

    for stage in found["stages"]:
        if stage["name"] in found["not_required"] and "certificate" in stage["meta"]:
            one = stage["meta"]["certificate"]["accuracy"]
            yield (
                f"{stage['name']} is optimised against without a required accuracy; its accuracy is "
                f"{one['mean']:.1%} [{one['low']:.1%}, {one['high']:.1%}] on held-out pairs"
                f"{'' if one['low'] > CHANCE else ', not shown to be better than chance'}"
            )


def markdown(found: Mapping[str, Any], about: str, report: str | None = None) -> str:
    """Markdown summary of a run for Prefect and MLflow: verdict, report link, gates, table of stages."""
    verdict = short_result(found)
    state = f"{found['state']}, {verdict}" if verdict else found["state"]
    link = f" [Evaluation report]({report})" if report else ""
    lines = [f"- **{word}**: {text}" if word else f"    - {text}" for word, text in lines_of(found)]
    made = [(stage["name"], stage["meta"]) for stage in found["stages"] if stage["made"]]
    table = ["| stage | seconds | result |", "|---|---|---|"] if made else []
    for name, meta in made:
        table.append(f"| {name} | {meta.get('seconds', '')} | {stage_headline(meta).replace('|', '/')} |")
    return "\n".join([f"**{found['run']}** ({state}): {about}{link}", "", *lines, "", *table, ""])


def stage_headline(meta: Mapping[str, Any]) -> str:
    """Headline metrics of a stage."""
    found, certificate = [], meta.get("certificate", {})
    for name, title in (("accuracy", "held-out accuracy"), ("cross_validated", "cross-validated")):
        if isinstance(interval := certificate.get(name), Mapping):
            found.append(f"{title} {interval['mean']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]")
    for name, value in meta.get("round_metrics", {}).items():
        if name.startswith("reward.") or name in ("length", "kl", "gold"):
            found.append(f"{name} {value:.3g}")
    if meta.get("best_validation_loss") is not None:
        found.append(f"validation loss {meta['best_validation_loss']:.4f} at step {meta['best_step']}")
    if meta.get("steps"):
        found.append(f"{meta['steps']} steps{', stopped early' if meta.get('stopped_early') else ''}")
    if "headline" in meta:
        found.append(str(meta["headline"]))
    if meta.get("rolled_back"):
        found.append("rolled back by a health rule")
    if meta.get("rolled_back_steps"):
        found.append(f"{meta['rolled_back_steps']} rolled back by a health rule")
    found += [f"health: {why}" for why in meta.get("verdicts", ())]
    found += [f"WARNING: {why}" for why in meta.get("warnings", ())]
    return " · ".join(found)


def stage_cell(meta: Mapping[str, Any]) -> str:
    """Table cell of a stage: headline, and record counts on a second line."""
    counted = record_counts(meta)
    return "\n".join(line for line in (stage_headline(meta), counted and f"records: {counted}") if line)


def numbers_of(tree: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a nested mapping, by dotted name."""
    found: dict[str, float] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= numbers_of(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{name}"] = float(value)
    return found


DETAILS = re.compile(
    r"(counts|spent|summary|splits|loss_counts)\.|max_quarantined|"
    r"(.*\.)?([a-z_]*seconds|[a-z_]*steps|best_step|steps_planned|updates|pairs|parameters|groups|quarantined|n|slope|margin)$|"
    r".*(tokens_per_second|tokens|_difference)$|.*\.(limits|coefficients|margin)\."
)
"""Counters and details of a stage: not for comparing runs."""


def stage_metrics(does: str, meta: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of a stage by their MLflow names. MLflow groups by the part before a slash: metrics for
    comparison have none, counters get `details/`. Names with a slash (last values of logged series)
    are omitted.
    """
    found: dict[str, float] = {}
    for name, value in numbers_of(meta).items():
        if DETAILS.match(name):
            found[f"details/{does}.{name}"] = value
        elif "/" not in name:
            short = name.removeprefix("round_metrics.")
            found[short if short != name or does == "evaluate" else f"{does}.{name}"] = value
    return found
