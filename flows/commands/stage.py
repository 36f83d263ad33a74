"""`ratchet stage`: one stage of `dvc.yaml`; called by `dvc repro`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from ratchet.flows.commands.options import OUT, Home, ProfileOption, RecipeName, Set
from ratchet.flows.startup import servers, set_environment_defaults

Part = Literal["fetch", "curate", "train", "evaluate"]


def stage(
    part: Annotated[Part, typer.Argument(help="A stage of dvc.yaml.")],
    recipe: RecipeName,
    home: Home = OUT,
    set: Set = [],  # noqa: B006
    profile: ProfileOption = None,
) -> None:
    """Run one DVC stage of a recipe and write its outputs where dvc.yaml expects; `dvc repro` calls it."""
    set_environment_defaults(home)
    with servers() if part in ("train", "evaluate") else contextlib.nullcontext():
        run_part(part, recipe, home=home, overrides=set, profile=profile)


def run_part(
    part: Part, recipe: str, *, home: Path, overrides: Sequence[str] = (), profile: str | None = None
) -> None:
    """Run the pipeline stages of one DVC stage and publish their data under `data/`. From `train` on, this
    runs the flow.
    """
    from ratchet.flows.dvc_workspace import check_outputs, publish_outputs
    from ratchet.tasks.pipeline import Pipeline

    pipeline = Pipeline.open(recipe, home=home, overrides=overrides, profile=profile)
    check_outputs(pipeline, Path.cwd(), part)
    if part in ("train", "evaluate"):
        from ratchet.flows.post_training import post_training

        post_training(recipe, home=str(home), overrides=list(overrides), profile=profile, until=part)
    else:  # curate verifies the download first, as the flow does
        data = ("raw", "drafts", "curated") if part == "curate" else ("raw",)
        for name in (*(n for n in pipeline.stages if n.startswith("model_")), *data):
            pipeline.make(name)
    publish_outputs(pipeline, Path.cwd(), (part,))
