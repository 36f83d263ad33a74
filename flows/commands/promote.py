"""`ratchet promote` and `ratchet rollback`: set the champion by hand; user, time and reason are recorded."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.flows.commands.options import OUT, Home, Reason


def promote(
    model: Annotated[str, typer.Argument(help="Name of a registered model.")],
    version: Annotated[str, typer.Option(help="Version number.")],
    reason: Reason,
    home: Home = OUT,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Promote even if gates failed, the version was rolled back, or it did not beat the "
            "champion.",
        ),
    ] = False,
) -> None:
    """Set the alias champion, after comparing the version with the champion on the same held-out prompts."""
    from ratchet.tasks.registry.promotion import promote_by_hand

    promoted, comparison, overruled = promote_by_hand(model, version, reason, force=force, home=home)
    if comparison is not None:
        typer.echo(str(comparison))
    for objection in overruled:
        typer.echo(f"overruled: {objection}")
    if promoted != version:
        typer.echo(
            f"version {version} was registered without its bytes: version {promoted} is the same with them"
        )
    typer.echo(f"{model}@champion is version {promoted}: {reason}")


def rollback(
    model: Annotated[str, typer.Argument(help="Name of a registered model.")],
    reason: Reason,
    home: Home = OUT,
) -> None:
    """Restore the previous champion."""
    from ratchet.tasks.registry.promotion import rollback as back

    old, new = back(model, reason, home=home)
    typer.echo(f"{model}@champion is version {new} again, no longer {old}: {reason}")
