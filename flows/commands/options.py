"""Options shared by several commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

OUT = Path("out")
Until = Literal["curate", "train", "evaluate", "register"]  # last part of a run
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe, or a YAML file.")]
Home = Annotated[Path, typer.Option(help="Directory of runs, stage outputs and the MLflow database.")]
Set = Annotated[list[str], typer.Option("--set", help="Override a recipe key: --set online.rounds=2")]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="Hardware profile: cpu, gpu, node, cluster, or a YAML file.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=1,
        help="Smoke test: at most N rows of each split, one epoch, two rounds, nothing registered.",
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        help="RUN (its final model), RUN/STAGE, a directory, or a registered model: name, name:version "
        "or name@alias."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=1, default=str))
