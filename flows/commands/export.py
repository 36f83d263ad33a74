"""`ratchet export`: a model as a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.flows.commands.options import OUT, Home, Model


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
