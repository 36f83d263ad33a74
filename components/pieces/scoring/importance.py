"""Truncated importance weights between trainer and inference engine (train-inference mismatch).

Two implementations of one policy differ in rounding, so sampling is slightly off-policy. "On the
Rollout-Training Mismatch in Modern RL Systems" (openreview.net/forum?id=8MHqvb4lK9) multiplies each
policy-gradient term by min(pi_learner / pi_sampler, C), as in V-trace (arXiv 1802.01561, eq. 1). No gradient
flows through the weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Columns, Context, Group


@piece(reads=("logprobs.old", "logprobs.sampled"), writes=("importance",), paper="openreview:8MHqvb4lK9")
def importance(
    groups: Sequence[Group], ctx: Context, *, cap: Positive = 2.0, limit: Positive = 0.5
) -> Columns:
    """`importance`, lists (T): min(exp(logprobs.old - logprobs.sampled), cap) at masked-in steps, 1
    elsewhere. For per-step objectives.

    `ContractError` if the mean absolute difference exceeds `limit` nats per step, which rounding cannot
    explain.
    """
    gaps = _gaps(groups, limit)
    return {
        "importance": [
            [[math.exp(min(gap, math.log(cap))) for gap in steps] for steps in rows] for rows in gaps
        ]
    }


@piece(reads=("logprobs.old", "logprobs.sampled"), writes=("importance.row",), paper="openreview:8MHqvb4lK9")
def row(groups: Sequence[Group], ctx: Context, *, cap: Positive = 2.0, limit: Positive = 0.5) -> Columns:
    """`importance.row`, one number per trajectory: min(exp(sum of differences), cap). For per-row
    objectives.
    """
    gaps = _gaps(groups, limit)
    return {
        "importance.row": [
            [math.exp(min(math.fsum(steps), math.log(cap))) for steps in rows] for rows in gaps
        ]
    }


def _gaps(groups: Sequence[Group], limit: float) -> list[list[list[float]]]:
    """logprobs.old - logprobs.sampled at each step of each trajectory; 0 outside the loss mask."""
    gaps, total, number = [], 0.0, 0
    for group in groups:
        rows = []
        for trajectory, old in zip(group.trajectories, group.columns["logprobs.old"], strict=True):
            if trajectory.logprobs is None:
                raise ContractError(
                    f"prompt {group.prompt.id!r}: an answer without sampler log-probs has no importance "
                    "weight; "
                    "remove `scoring.importance` from a recipe that trains on answers of other sources"
                )
            steps = [
                p - q if chosen else 0.0
                for p, q, chosen in zip(old, trajectory.logprobs, trajectory.mask, strict=True)
            ]
            total, number = total + sum(map(abs, steps)), number + sum(trajectory.mask)
            rows.append(steps)
        gaps.append(rows)
    if not total <= limit * max(number, 1):
        raise ContractError(
            f"log-prob mismatch between inference engine and trainer: {total / number:.2g} nats per step "
            "on the same tokens (at most "
            f"{limit} expected), so their weights differ. Check that the engine was refreshed after the "
            "last update"
        )
    return gaps
