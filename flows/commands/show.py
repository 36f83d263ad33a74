"""`ratchet show` and `ratchet runs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.flows.commands.options import OUT, Home, Json, print_json

if TYPE_CHECKING:
    from rich.console import Console

LISTED = ("run", "recipe", "state", "started", "ended", "registered", "champion", "path")
"""Keys of a run in `ratchet runs --json`."""


def show(
    run: Annotated[str | None, typer.Argument(help="Name of a run. Default: the newest.")] = None,
    home: Home = OUT,
    as_json: Json = False,
) -> None:
    """Show a run: stages, metrics, gates, registered versions; the error and log of a failed run."""
    from rich.markup import escape

    from ratchet.flows.display import open_console, table_of
    from ratchet.tasks.tracking.outcome import find_run, outcome, stage_cell

    folder = find_run(run, home)
    summary = outcome(folder)
    if as_json:
        return print_json(summary)
    console = open_console()
    console.print(
        f"[bold]{summary['run']}[/bold]  recipe {summary['recipe']}  {summary['state']}  "
        f"{_when(summary['started'])}  code {summary['revision'][:12]}"
    )
    table = table_of("stage", "key", "seconds", "result")
    for stage in summary["stages"]:
        table.add_row(
            stage["name"],
            stage["key"][:12],
            *(
                [f"{stage['meta'].get('seconds', '')}", escape(stage_cell(stage["meta"]))]
                if stage["made"]
                else ["", "not made"]
            ),
        )
    console.print(table)
    print_outcome(console, summary, _currency(folder / "recipe.yaml"))


def runs(home: Home = OUT, as_json: Json = False) -> None:
    """List all runs, newest first: recipe, state, start, gates."""
    from ratchet.flows.display import open_console, table_of
    from ratchet.tasks.tracking.outcome import outcome, run_files, short_result

    summaries = [outcome(file.parent) for file in reversed(run_files(home))]
    if as_json:
        return print_json(
            [{key: one[key] for key in LISTED} | {"verdict": short_result(one)} for one in summaries]
        )
    if not summaries:
        return typer.echo(f"there is no run under {home / 'runs'} yet; `ratchet run instruct` makes one")
    table = table_of("run", "recipe", "state", "started", "verdict")
    for summary in summaries:
        table.add_row(
            summary["run"],
            summary["recipe"],
            summary["state"],
            _when(summary["started"]),
            short_result(summary),
        )
    open_console().print(table)


def print_outcome(console: Console, summary: Mapping[str, Any], currency: str = "") -> None:
    """Print error, gates, versions, champion, cost, drift and paths, one line each."""
    from ratchet.tasks.tracking.outcome import lines_of
    from ratchet.tasks.tracking.spending import describe_spending

    drift = [
        (
            "drift",
            f"{kind} against {drift['against']}: "
            + ("; ".join(drift["moved"]) or f"none in {len(drift['compared'])} comparisons"),
        )
        for kind, drift in summary["drift"].items()
    ]
    spent = [("spent", describe_spending(summary["spent"], currency))] if summary["spent"] else []
    report = [("report", summary["report"])] if summary["report"] else []
    for word, text in [*lines_of(summary), *spent, *drift, *report]:
        console.print(f"{word:<10} {text}", soft_wrap=True, markup=False)


def _when(started: str | None) -> str:
    return started[:16].replace("T", " ") if started else ""


def _currency(resolved: Path) -> str:
    import yaml

    return (
        (yaml.safe_load(resolved.read_text()).get("profile") or {}).get("hardware", {}).get("currency", "")
        if resolved.exists()
        else ""
    )
