"""`ratchet export`, `ratchet promote` and `ratchet rollback`: a model as files, and the champion set by hand;
user, time and reason are recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.flows.commands.options import OUT, Home, Model

Registered = Annotated[str, typer.Argument(help="Name of a registered model.")]
Reason = Annotated[str, typer.Option(help="Reason, kept with the version.")]


def export(
    model: Model,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to create.")],
    home: Home = OUT,
) -> None:
    """Export a model as a Hugging Face directory with a model card."""
    from ratchet.tasks.registry.exporting import export as write

    out = write(model, directory, home=home)
    typer.echo(
        f"{out}: {len([*out.rglob('*')])} files, "
        f"{sum(f.stat().st_size for f in out.rglob('*') if f.is_file()) / 1e6:.1f} MB"
    )


def promote(
    model: Registered,
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


def rollback(model: Registered, reason: Reason, home: Home = OUT) -> None:
    """Restore the previous champion."""
    from ratchet.tasks.registry.promotion import rollback as back

    old, new = back(model, reason, home=home)
    typer.echo(f"{model}@champion is version {new} again, no longer {old}: {reason}")
