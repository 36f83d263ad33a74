"""`ratchet compare-runs`: what differed between two runs, and what that did to the results."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flows.commands.options import OUT, Home

Run = Annotated[str, typer.Argument(help="A run's name or directory.")]


def compare_runs(first: Run, other: Run, home: Home = OUT) -> None:
    """Compare two runs: recipe, code, packages, products, and results with paired intervals of other − first."""
    from rich.console import Console

    from tasks.differences import differences, find_run

    paths = find_run(first, home), find_run(other, home)
    found = differences(*paths)
    console = Console(highlight=False)
    names = [path.resolve().name for path in paths]
    for title, rows in (("recipe", found.recipe), ("code", found.code), ("package", found.packages)):
        if rows:
            console.print(_table([title, *names], rows))
            console.print()
        else:
            console.print(f"{title}: no difference")
    console.print(_table(["stage", "", "because of"], found.stages))
    console.print()
    if found.scores:
        console.print(_table(["score", *names, "other − first, 95 % interval over prompts"], [
            (score, f"{a:.4g}", f"{b:.4g}", gap if isinstance(gap, str) else
             f"{gap['mean']:+.4g} [{gap['low']:+.4g}, {gap['high']:+.4g}], {gap['n']} prompts") for score, a, b, gap in found.scores]))
        console.print()
    if found.metrics:
        console.print(_table(["metric", *names], found.metrics))


def _table(columns: list[str], rows: Any) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
