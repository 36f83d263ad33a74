"""Options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

OUT = Path("out")
Until = Literal["curate", "train", "evaluate", "register"]  # what a run ends with
Home = Annotated[Path, typer.Option(help="Where runs, products and the tracking database live.")]
Set = Annotated[list[str], typer.Option("--set", help="Override a recipe key: --set online.rounds=2")]
ProfileOption = Annotated[str | None, typer.Option("--profile", help="Hardware and sizes: cpu, gpu, ..., or a file of your own.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="A smoke test: at most so many rows of each split, every stage small, nothing registered.")]
Reason = Annotated[str, typer.Option(help="Why, in words: kept on the version for whoever asks later.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1, default=str))
