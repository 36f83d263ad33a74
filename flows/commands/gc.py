"""`ratchet gc`: delete stage outputs that nothing needs from the store."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.filesize import decimal

from ratchet.components.errors import RecipeError
from ratchet.flows.commands.options import OUT, Home
from ratchet.flows.display import open_console, table_of


def gc(
    home: Home = OUT,
    keep_days: Annotated[float, typer.Option(help="Keep stage outputs of runs of the last N days.")] = 14.0,
    keep_last: Annotated[
        int, typer.Option(min=0, help="Keep stage outputs of the last N runs, regardless of age.")
    ] = 5,
    best: Annotated[
        int | None,
        typer.Option(
            help="Keep the N best registered versions of a model, besides its champions. Default: all."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric that --best ranks by; the highest is best.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete. Without it, only list.")] = False,
) -> None:
    """List, or with --yes delete, stage outputs that no registered version, running or recent run needs."""
    from ratchet.tasks.data.retention import Policy, survey, sweep

    if not keep_days >= 0:  # nan too
        raise RecipeError(f"--keep-days: expected 0 or more, got {keep_days:g}")
    if best is not None and metric is None:
        raise RecipeError(
            "--best needs --metric, the metric that ranks the versions, such as final.reward.instructions"
        )
    policy = Policy(keep_days, keep_last, best, metric or "")
    collected = (sweep if yes else survey)(home, policy)
    console, titles = open_console(), ("removed" if yes else "would go", "what", "made", "frees")
    rows = (
        (e.path.relative_to(home.resolve()), e.what, e.made[:16].replace("T", " "), decimal(e.size))
        for e in sorted(collected.go, key=lambda e: -e.size)
    )
    if collected.go:
        console.print(table_of(titles, rows, right=["frees"], no_wrap=True))
    for reason, count in collected.stay.most_common():
        console.print(f"stays: {count} products, {decimal(collected.stay_bytes[reason])}, {reason}")
    console.print(
        f"{'Freed' if yes else 'Would free'} {decimal(collected.freed)} in {len(collected.go)} directories."
        + ("" if yes or not collected.go else " Add --yes to remove them.")
    )
