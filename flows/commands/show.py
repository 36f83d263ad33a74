"""`ratchet show` and `ratchet runs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from ratchet.flows.commands.options import OUT, Home, Json, print_json
from ratchet.flows.display import open_console, print_facts, table_of
from ratchet.tasks.tracking.outcome import find_run, lines_of, outcome, run_files, short_result, stage_cell

LISTED = ("run", "recipe", "state", "started", "ended", "registered", "champion", "path")
"""Keys of a run in `ratchet runs --json`."""


def show(
    run: Annotated[str | None, typer.Argument(help="Name of a run. Default: the newest.")] = None,
    home: Home = OUT,
    as_json: Json = False,
) -> None:
    """Show a run: stages, metrics, gates, registered versions; the error and log of a failed run."""
    import yaml

    folder = find_run(run, home)
    summary = outcome(folder)
    if as_json:
        return print_json(summary)
    console = open_console()
    console.print(
        f"[bold]{summary['run']}[/bold]  recipe {summary['recipe']}  {summary['state']}  "
        f"{_when(summary['started'])}  code {summary['revision'][:12]}"
    )
    rows = (
        (one["name"], one["key"][:12], one["meta"].get("seconds", ""), stage_cell(one["meta"]))
        if one["made"]
        else (one["name"], one["key"][:12], "", "not made")
        for one in summary["stages"]
    )
    console.print(table_of(("stage", "key", "seconds", "result"), rows))
    resolved = folder / "recipe.yaml"
    profile = (yaml.safe_load(resolved.read_text()).get("profile") or {}) if resolved.exists() else {}
    print_outcome(console, summary, profile.get("hardware", {}).get("currency", ""))


def runs(home: Home = OUT, as_json: Json = False) -> None:
    """List all runs, newest first: recipe, state, start, gates."""
    summaries = [outcome(file.parent) for file in reversed(run_files(home))]
    if as_json:
        return print_json(
            [{key: one[key] for key in LISTED} | {"verdict": short_result(one)} for one in summaries]
        )
    if not summaries:
        return typer.echo(f"there is no run under {home / 'runs'} yet; `ratchet run instruct` makes one")
    rows = (
        (one["run"], one["recipe"], one["state"], _when(one["started"]), short_result(one))
        for one in summaries
    )
    open_console().print(table_of(("run", "recipe", "state", "started", "verdict"), rows))


def print_outcome(console: Console, summary: Mapping[str, Any], currency: str = "") -> None:
    """Print error, gates, versions, champion, cost, drift and paths, one line each."""
    from ratchet.tasks.tracking.spending import describe_spending

    drift = [
        ("drift", f"{kind} against {found['against']}: {_drift(kind, found)}")
        for kind, found in summary["drift"].items()
    ]
    spent = f"{describe_spending(summary['spent'], currency)}, by all stages, kept ones included"
    spent = [("spent", spent)] if summary["spent"] else []
    report = [("report", summary["report"])] if summary["report"] else []
    print_facts(console, [*lines_of(summary), *spent, *drift, *report])


def _drift(kind: str, found: Mapping[str, Any]) -> str:
    """What moved; data that are the same ones are not compared."""
    if found["moved"]:
        return "; ".join(found["moved"])
    if found["compared"]:
        return f"none in {len(found['compared'])} comparisons"
    return "the same data" if kind == "data" else "no score that both have"


def _when(started: str | None) -> str:
    return started[:16].replace("T", " ") if started else ""
