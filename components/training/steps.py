"""Steps of a fit: how many there are, which groups each trains on, and when a checkpoint is due."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.training import ranks
from ratchet.components.training.packing import order
from ratchet.components.types import Group

SAVE_SECONDS = 300.0
"""Time between checkpoints where a recipe has no `save_every`."""


def steps_planned(units: int, options: Mapping[str, Any]) -> int:
    """Number of optimizer steps of a fit. The last step of an epoch may be smaller."""
    steps = math.ceil(units / options["batch"]) * options["epochs"]
    return min(steps, options["max_steps"]) if options["max_steps"] else steps


def save_is_due(every: int | None, step: int, saved: float) -> bool:
    """Whether to write a checkpoint after this step: every `every` steps (0: never), or for None
    `SAVE_SECONDS` after the last one at `saved` (of `time.monotonic`), by the clock of rank 0. A checkpoint
    is three times the size of the weights.
    """
    if every is None:
        return ranks.once(lambda: time.monotonic() - saved >= SAVE_SECONDS)
    return bool(every) and step % every == 0


def step_groups(groups: Sequence[Group], options: Mapping[str, Any], step: int, seed: int) -> Sequence[Group]:
    """The groups of optimizer step `step` (from 0) of passes over `groups`, which are shuffled for each
    epoch.
    """
    batch = options["batch"]
    epoch, within = divmod(step, math.ceil(len(groups) / batch))
    return [groups[i] for i in order(len(groups), epoch, seed)[within * batch : (within + 1) * batch]]


TRAINED = "trained"
"""Optional bool column. Trajectories where it is false enter no loss; only the `means` of objectives read
them.
"""
