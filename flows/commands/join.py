"""`ratchet join`: join this machine to multi-node stages."""

from __future__ import annotations

import typer

from ratchet.flows.commands.options import OUT, Home


def join(home: Home = OUT) -> None:
    """Run this machine's ranks of every stage in a home that asks for more machines (`machines` of its profile), until Ctrl-C.

    All machines see the home under one path, run the same code, and trust each other's network. Start it on each but the one that runs."""
    from ratchet.flows.display import open_console
    from ratchet.tasks.joining import join as take_part
    from ratchet.tasks.orphans import leave_nothing_behind

    leave_nothing_behind()
    console = open_console(highlight=False)
    console.print(f"Waiting for stages in {home.resolve()} that ask for more machines; Ctrl-C ends this.", soft_wrap=True)
    try:
        take_part(home, lambda text: console.print(text, markup=False, soft_wrap=True))
    except KeyboardInterrupt:
        console.print("Stopped. A stage that had ranks here ends; run it again to continue from its last checkpoint.")
        raise typer.Exit(130) from None
