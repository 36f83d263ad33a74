"""`ratchet export` and `ratchet push`: a model as a plain Hugging Face directory, here or on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.flows.commands.options import OUT, Home

Model = Annotated[str, typer.Argument(help="RUN (its final model), RUN/STAGE, a directory, or a registered name, name:version or name@alias.")]


def export(model: Model, directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")], home: Home = OUT) -> None:
    """Copy a model into a plain Hugging Face directory with a model card: lineage, data digests, gates and metrics with intervals."""
    from ratchet.tasks.exporting import export as write

    out = write(model, directory, home=home)
    typer.echo(f"{out}: {len([*out.rglob('*')])} files, {sum(f.stat().st_size for f in out.rglob('*') if f.is_file()) / 1e6:.1f} MB")


def push(model: Model, repository: Annotated[str, typer.Argument(metavar="hub:ORG/NAME", help="A repository of the hub; made if it is new.")],
         public: Annotated[bool, typer.Option("--public", help="Make a new repository public; private otherwise.")] = False,
         message: Annotated[str, typer.Option(help="Of the commit.")] = "", home: Home = OUT) -> None:
    """Upload a model with its model card to the Hugging Face hub (HF_TOKEN or `hf auth login`; HF_ENDPOINT for another hub)."""
    from ratchet.tasks.exporting import push as upload

    typer.echo(upload(model, repository, home=home, public=public, message=message))
