"""`ratchet join`: join this machine to multi-node stages."""

from __future__ import annotations

import typer

from ratchet.flows.commands.options import OUT, Home
from ratchet.flows.display import open_console


def join(home: Home = OUT) -> None:
    """Join this node to the stages of a home that use several machines (`machines` of the profile), until
    Ctrl-C: training waits for it, sampling and scoring take it when it comes.

    All nodes need the home under the same path, the same code, and a trusted network. Start it on every node
    but the one that runs.
    """
    from ratchet.tasks.process.joining import join as take_part
    from ratchet.tasks.process.orphans import reap_children_on_exit

    reap_children_on_exit()
    console = open_console()
    console.print(f"Waiting for multi-node stages in {home.resolve()}; Ctrl-C stops.", soft_wrap=True)
    try:
        take_part(home, lambda text: console.print(text, markup=False, soft_wrap=True))
    except KeyboardInterrupt:
        console.print(
            "Stopped. A stage with ranks on this machine ends; the same `ratchet run` resumes it from "
            "its last checkpoint. One with engines here continues without them."
        )
        raise typer.Exit(130) from None
