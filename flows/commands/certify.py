"""`ratchet certify`: evaluation of a reward model on held-out preference pairs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.flows.commands.options import OUT, Home, ProfileOption


def certify(
    model: Annotated[
        str, typer.Argument(help="Reward model: hub:org/name, path:/models/mine, or a directory.")
    ],
    data: Annotated[
        str, typer.Option(help="Held-out preference pairs: a file, a folder, or hub:datasets/org/name.")
    ],
    limit: Annotated[
        list[str], typer.Option("--limit", help="Required value, for example --limit min_accuracy=0.6.")
    ] = [],  # noqa: B006
    home: Home = OUT,
    profile: ProfileOption = None,
) -> None:
    """Evaluate a reward model on held-out pairs: accuracy, calibration, length bias, with intervals. Exit
    code 1 if it fails.
    """
    import yaml

    from ratchet.components.errors import RecipeError
    from ratchet.components.recipes.check_data import check_files
    from ratchet.tasks.pipeline import Pipeline
    from ratchet.tasks.tracking.ending import ending

    if wrong := next((one for one in limit if "=" not in one), None):
        raise RecipeError(f"--limit {wrong}: expected NAME=VALUE, such as min_accuracy=0.6")
    for option, text in (("MODEL", model), ("--data", data)):
        where = address(text)
        if where.startswith("path:") and not Path(where.removeprefix("path:")).exists():
            raise RecipeError(f"{option}: there is no file or folder {text.removeprefix('path:')}")
    limits = {name: yaml.safe_load(value) for name, _, value in (one.partition("=") for one in limit)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "certify.yaml"
        file.write_text(yaml.safe_dump(_recipe(model, data, limits)))
        pipeline = Pipeline.open(file, home=home, profile=profile)
    check_files(pipeline.recipe)
    pipeline.begin()
    try:
        for name in pipeline.stages:
            made = pipeline.make(name)
    except BaseException as error:
        state, found = ending(error)
        pipeline.end(state, **found, failed_stage=pipeline.failing)
        raise
    certificate = made.meta["certificate"]
    pipeline.end("finished")
    accuracy = certificate["accuracy"]
    verdict = "passed" if certificate["passed"] else "failed"
    typer.echo(
        f"{verdict}: right on {accuracy['mean']:.1%} [{accuracy['low']:.1%}, {accuracy['high']:.1%}] of "
        f"{certificate['pairs']} held-out pairs; "
        f"{made.path / 'certificate.json'}"
    )
    for reason in [*certificate["reasons"], *certificate["notes"]]:
        typer.echo(f"  {reason}")
    if not certificate["passed"]:
        raise typer.Exit(1)


def _recipe(model: str, data: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe that only certifies `model` on the pairs in `data`."""
    return {
        "schema": 1,
        "about": f"The certificate of {model}.",
        "models": {
            "policy": {"source": address(model)},  # its tokenizer counts the tokens of the pairs
            "reward_model": {"source": address(model), "role": "reward", "certificate": limits},
        },
        "data": {
            "source": address(data),
            "parser": "auto",
            "splits": {"reward_validation": 1.0},
            "min_topics": 1,
            "max_topic_share": 1.0,
        },
    }


def address(text: str) -> str:
    """A source as written in a recipe; a plain path gets the prefix `path:`."""
    return (
        text
        if text.split(":")[0] in ("hub", "pypi", "generate", "registry")
        else f"path:{Path(text.removeprefix('path:')).resolve()}"
    )
