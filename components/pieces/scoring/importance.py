"""Truncated importance weights between the learner's policy and what the sampler really drew from.

Two implementations of one policy, vLLM's and ours, differ in rounding, so what is sampled is a little off-policy. "On the
Rollout-Training Mismatch in Modern RL Systems" (openreview.net/forum?id=8MHqvb4lK9) multiplies each term of the policy gradient by
min(pi_learner / pi_sampler, C), a bound that V-trace set before it (arXiv 1802.01561, eq. 1). The weight carries no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Columns, Context, Group


@piece(reads=("logprobs.old", "logprobs.sampled"), writes=("importance",), paper="openreview:8MHqvb4lK9")
def importance(groups: Sequence[Group], ctx: Context, *, cap: Positive = 2.0, limit: Positive = 0.5) -> Columns:
    """`importance`, lists (T): min(exp(logprobs.old - logprobs.sampled), cap) at chosen steps, 1 at others. For objectives a step.

    A mean absolute difference over `limit` nats a step is no rounding: `ContractError`, for the sampler holds other weights.
    """
    gaps = _gaps(groups, limit)
    return {"importance": [[[math.exp(min(gap, math.log(cap))) for gap in steps] for steps in rows] for rows in gaps]}


@piece(reads=("logprobs.old", "logprobs.sampled"), writes=("importance.row",), paper="openreview:8MHqvb4lK9")
def row(groups: Sequence[Group], ctx: Context, *, cap: Positive = 2.0, limit: Positive = 0.5) -> Columns:
    """`importance.row`, a number a trajectory: the same for the whole answer, min(exp(sum of differences), cap). For objectives a row."""
    gaps = _gaps(groups, limit)
    return {"importance.row": [[math.exp(min(math.fsum(steps), math.log(cap))) for steps in rows] for rows in gaps]}


def _gaps(groups: Sequence[Group], limit: float) -> list[list[list[float]]]:
    """logprobs.old - logprobs.sampled at each step of each trajectory; 0 where nothing was chosen."""
    gaps, total, number = [], 0.0, 0
    for group in groups:
        rows = []
        for trajectory, old in zip(group.trajectories, group.columns["logprobs.old"], strict=True):
            if trajectory.logprobs is None:
                raise ContractError(f"prompt {group.prompt.id!r}: an answer without its sampler's log-probs has no importance weight; "
                                    "take `scoring.importance` out of a recipe that learns from other people's answers")
            steps = [p - q if chosen else 0.0 for p, q, chosen in zip(old, trajectory.logprobs, trajectory.mask, strict=True)]
            total, number = total + sum(map(abs, steps)), number + sum(trajectory.mask)
            rows.append(steps)
        gaps.append(rows)
    if not total <= limit * max(number, 1):
        raise ContractError(f"sampler and learner differ by {total / number:.2g} nats a step on the same tokens (at most {limit} expected): "
                            "they do not hold the same weights. Was the engine refreshed after the last update?")
    return gaps
