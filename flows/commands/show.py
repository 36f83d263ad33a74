"""`ratchet show`: one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from components.errors import RecipeError
from flows.commands.options import OUT, Home


def show(run: Annotated[str | None, typer.Argument(help="A run's name; the newest when left out.")] = None, home: Home = OUT) -> None:
    """Show a run: its stages, what they found, what made them."""
    from rich.markup import escape

    from components.store import read_manifest
    from flows.display import open_console, result, table_of
    from tasks.spending import said

    runs = sorted((home / "runs").glob("*/run.json"), key=lambda p: p.stat().st_mtime) if (home / "runs").is_dir() else []
    if run:
        runs = [p for p in runs if p.parent.name == run]
    if not runs:
        raise RecipeError(f"no run {run!r} under {home / 'runs'}" if run else
                          f"there is no run under {home / 'runs'} yet; `ratchet run instruct` makes one")
    state = json.loads(runs[-1].read_text())
    console, folder = open_console(), runs[-1].parent
    console.print(f"[bold]{folder.name}[/bold]  recipe {state.get('recipe')}  {state.get('state')}  code {state.get('revision', '')[:12]}")
    table = table_of("stage", "key", "seconds", "result")
    for name, key in state.get("stages", {}).items():
        manifest = read_manifest(folder / "stages" / name)
        table.add_row(name, key[:12], *(["", "not made"] if manifest is None else
                                        [f"{manifest['meta'].get('seconds', '')}", escape(result(manifest["meta"]))]))
    console.print(table)
    if "spent" in state:
        console.print(f"spent      {said(state['spent'], _currency(folder / 'recipe.yaml'))}", highlight=False, soft_wrap=True)
    drift = json.loads((folder / "drift.json").read_text()) if (folder / "drift.json").exists() else {}
    for kind, found in drift.items():
        console.print(f"drift      {kind} against {found['against']}: " + ("; ".join(found["moved"]) or
                      f"none in {len(found['compared'])} comparisons"), highlight=False, soft_wrap=True, markup=False)
    report = folder / "stages" / "evaluate" / "report.html"
    if report.exists():
        console.print(f"report: {report.resolve()}")


def _currency(resolved: Path) -> str:
    import yaml

    return (yaml.safe_load(resolved.read_text()).get("profile") or {}).get("hardware", {}).get("currency", "") if resolved.exists() else ""
