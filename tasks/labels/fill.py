"""Fill a labelling queue with the answers of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from ratchet.components.data.groups import read_groups
from ratchet.components.errors import RecipeError, nearest
from ratchet.components.labels.datasets import items_of, planted_items, repeated
from ratchet.components.labels.settings import Settings, common_default, make_queue
from ratchet.components.piece import build
from ratchet.components.storage.store import read_manifest
from ratchet.components.types import Context, Group
from ratchet.tasks.tracking.outcome import outcome

ANSWERS = ("rollout", "annotate", "demonstrate", "prepare_offline", "improve")
"""Kinds of stages that write sampled answers."""
FILES = ("answers.parquet", "groups.parquet", "last_groups.parquet")
"""Files of sampled answers; of several in one stage, the last."""


def fill(
    folder: Path,
    run: Path,
    settings: Settings,
    *,
    stage: str | None = None,
    labels: int | None = None,
    select: str | None = None,
    repeats: float = 0.0,
    planted: Path | None = None,
    common: int | None = None,
    seed: int = 0,
) -> str:
    """Make a queue of comparisons between the answers that a stage of the run wrote; returns a line on it.

    With `labels` so many that annotators give at most that number of labels, pairs that two of them judge
    counted twice and those that all of them judge once. `common`: how many these are; None:
    `settings.common_default`. `select`: name of a selector that proposes
    pairs, or a piece with options in YAML. `RecipeError` if the run has no such answers.
    """
    name, file = answers_of(run, stage)
    groups: Sequence[Group] = read_groups(file)
    if select:
        spec = yaml.safe_load(select)
        groups = build("select", {"name": spec} if isinstance(spec, str) else spec)(
            groups, Context(seed=seed)
        )
    count = None if labels is None else max(1, int(labels / (1 + settings.overlap) + 1e-9))
    manifest = read_manifest(file.parent) or {}
    made_with, parents = manifest.get("made_with") or {}, manifest.get("parents") or []
    inputs, round_number = list(made_with.get("inputs") or {}), (made_with.get("options") or {}).get("round")
    policy = parents[inputs.index("policy")] if "policy" in inputs and parents else manifest.get("key", "")
    items = items_of(groups, count, seed=seed, round=round_number, policy=policy)
    if not items:
        raise RecipeError(f"stage {name!r} of run {run.name} has no two different answers to one prompt")
    extra = [*repeated(items, repeats, seed), *(planted_items(planted) if planted else [])]
    if common is None:
        common = common_default(len(items), settings.overlap)
    make_queue(folder, [*items, *extra], replace(settings, common=common))
    more = f", {len(extra)} repeated or planted" if extra else ""
    return f"filled     {len(items)} pairs of answers of stage {name}{more}"


def answers_of(run: Path, stage: str | None) -> tuple[str, Path]:
    """Name of a stage and its file of groups; by default the last stage that sampled answers."""
    made = {one["name"]: run / "stages" / one["name"] for one in outcome(run)["stages"] if one["made"]}
    files = {
        name: folder / file
        for name, folder in made.items()
        for file in FILES
        if (folder / file).is_file() and (stage == name or _does(folder) in ANSWERS)
    }
    if stage is not None and stage not in files:
        raise RecipeError(f"run {run.name} has no answers of a stage {stage!r}{nearest(stage, files)}")
    if not files:
        raise RecipeError(
            f"run {run.name} has no sampled answers yet; expected a finished stage of an online phase, such "
            "as rollout_1"
        )
    name = stage or list(files)[-1]
    return name, files[name].resolve()


def _does(folder: Path) -> str:
    """Kind of the stage that made a folder; empty if its manifest does not say."""
    return ((read_manifest(folder) or {}).get("made_with") or {}).get("does", "")
