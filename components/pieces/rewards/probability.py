"""Probability that a binary classifier of answers gives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ratchet.components.inference.answers import reward_model_scores
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Finite
from ratchet.components.types import Columns, Context, Group, Message


def sigmoid(logit: float) -> float:
    """1 / (1 + e^-logit), without overflow.

    >>> [round(sigmoid(x), 3) for x in (-1000.0, 0.0, 2.0)]
    [0.0, 0.5, 0.881]
    """
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


@piece(writes=("reward.probability", "reward.probability.status"), paper="arXiv:2505.14946", by_group=True)
def probability(
    groups: Sequence[Group],
    ctx: Context,
    *,
    model: str = "reward_model",
    offset: Finite = 0.0,
    alone: str = "",
) -> Columns:
    """`reward.probability` = sigmoid(score - offset) in (0, 1) by a reward model that learned from single
    labels (objective `binary`), such as P[Love] of RLUF. With negatives down-sampled to as many as the
    positives, `offset` log((1 - rate) / rate) gives back the rate; ranks do not depend on it. `alone`: this
    text takes the place of the prompt, so that a classifier of texts (SimpleDC, arXiv 2401.15043) does not
    see what was asked. An empty answer is skipped.
    """
    message: Message = {"role": "user", "content": alone}
    shown = (
        [
            Group(dataclasses.replace(group.prompt, messages=(message,)), group.trajectories)
            for group in groups
        ]
        if alone
        else groups
    )
    values, statuses = reward_model_scores(shown, ctx, model)
    return {
        "reward.probability": [
            [None if value is None else sigmoid(value - offset) for value in row] for row in values
        ],
        "reward.probability.status": statuses,
    }
