"""A learned reward."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.types import OK, Columns, Context, Group


def judged(groups: Sequence[Group], ctx: Context, model: str) -> tuple[list[list[Any]], list[list[str]]]:
    """Score and status of each trajectory. The texts are rendered by the model's own template, never by the policy's;
    an empty answer is skipped, a score that is not finite has failed.
    """
    engine = ctx.models[model]
    bare = [Group(g.prompt, tuple(dataclasses.replace(t, inputs={}, mask=(), logprobs=None) for t in g.trajectories)) for g in groups]
    rows = engine.score([engine.encode(group) for group in bare], frozenset({"scores"}))
    values, statuses = [], []
    for group, row in zip(groups, rows, strict=True):
        status = [_status(t.text, s) for t, s in zip(group.trajectories, row["scores"], strict=True)]
        values.append([float(s) if what == OK else None for s, what in zip(row["scores"], status, strict=True)])
        statuses.append(status)
    return values, statuses


def _status(text: str, score: float) -> str:
    if not text.strip():
        return "skipped: the answer is empty"
    return OK if math.isfinite(score) else f"failed: the reward model gave {score}"


@piece(writes=("reward.{model}", "reward.{model}.status"), paper="arXiv:2203.02155")
def reward_model(groups: Sequence[Group], ctx: Context, *, model: str = "judge") -> Columns:
    """`reward.<model>`: the scalar of a reward model on prompt and answer, in its own units (logits of Bradley-Terry)."""
    values, statuses = judged(groups, ctx, model)
    return {f"reward.{model}": values, f"reward.{model}.status": statuses}
