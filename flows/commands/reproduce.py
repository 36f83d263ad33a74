"""`ratchet reproduce`: recompute a checkpoint from its recorded recipe and data, and compare bit for bit."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

from ratchet.flows.commands.options import OUT, Home, Model
from ratchet.flows.display import open_console


def reproduce(
    model: Model,
    home: Home = OUT,
    into: Annotated[Path | None, typer.Option(help="Empty directory to replay in, kept afterwards.")] = None,
) -> None:
    """Train a checkpoint again in a fresh home and compare bit for bit. Exit code 1 if it differs."""
    from ratchet.tasks.registry.lineage import resolve
    from ratchet.tasks.registry.versions import fallback
    from ratchet.tasks.tracking.reproduce import reproduce as replay
    from ratchet.tasks.tracking.reproduce import surroundings

    made, version = resolve(model, home)
    console = open_console(markup=False, soft_wrap=True)
    title = f"{version.name} version {version.version}" if version else made["product"]
    console.print(
        f"Replaying {title}: {len(made['stages'])} stages of run {made['run']}, recipe {made['recipe']}."
    )
    if taken := fallback(model, version):
        console.print(f"note     {taken}")
    changed = surroundings(made)
    for line in changed:
        console.print(f"differs  {line}")
    folder = into or home / f"reproduction-{made['product']}-{time.strftime('%Y%m%d-%H%M%S')}"
    for outcome in replay(made, folder, home=home):
        console.print(f"{outcome.stage:<14} {outcome.kind:<8} {outcome.state:<10} {outcome.found[:16]}")
        if outcome.state != "differs":
            continue
        console.print(
            f"Stage {outcome.stage} is the first that differs: recorded {outcome.expected[:16]}, replayed "
            f"{outcome.found[:16]}."
        )
        if outcome.files:
            console.print(f"Files: {', '.join(outcome.files)}")
        if outcome.changed:
            console.print("Its code or options differ from those of the recorded output.")
        elif not changed:
            console.print(
                "Code, packages and machine are the same: the record is wrong or the stage is not "
                "deterministic."
            )
        console.print(f"The replayed stages are kept in {folder}.")
        raise typer.Exit(1)
    console.print(f"Identical: {title} was reproduced bit for bit.")
    if into is None:
        shutil.rmtree(folder)
