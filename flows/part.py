"""Runs one stage of `dvc.yaml` (`ratchet stage`, called by `dvc repro`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ratchet.flows.parts import lay_out
from ratchet.flows.post_training import post_training
from ratchet.tasks.pipeline import Pipeline

Part = Literal["fetch", "curate", "train", "evaluate"]


def run_part(
    part: Part, recipe: str, *, home: Path, overrides: Sequence[str] = (), profile: str | None = None
) -> None:
    """Run the pipeline stages of one DVC stage and publish their data under `data/`. From `train` on, this
    runs the flow.
    """
    pipeline = Pipeline.open(recipe, home=home, overrides=overrides, profile=profile)
    if part in ("fetch", "curate"):  # curate verifies the download first, as the flow does
        data = ("raw", "drafts", "curated") if part == "curate" else ("raw",)
        for name in (*(n for n in pipeline.stages if n.startswith("model_")), *data):
            pipeline.make(name)
    else:
        post_training(recipe, home=str(home), overrides=list(overrides), profile=profile, until=part)
    lay_out(pipeline, Path.cwd(), (part,))
