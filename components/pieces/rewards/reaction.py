"""Reactions of simulated users to single answers, such as a click on "Love"."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Finite, Positive
from ratchet.components.types import Columns, Context, Group


def chance(value: float, scale: float, offset: float) -> float:
    """sigmoid(scale x value - offset), the probability of a reaction; at least e^-700, since exp overflows at
    710.

    >>> [round(chance(v, 8.0, 7.0), 3) for v in (0.5, 0.75, 1.0)]
    [0.047, 0.269, 0.731]
    """
    return 1 / (1 + math.exp(min(offset - scale * value, 700.0)))


@piece(reads=("{reward}",), writes=("reward.reaction", "reacted"), paper="arXiv:2505.14946", by_group=True)
def reaction(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str = "reward.sentiment",
    scale: Positive = 8.0,
    offset: Finite = 7.0,
) -> Columns:
    """Users who react to an answer with probability `reward.reaction` = sigmoid(scale x reward - offset), and
    `reacted`, 1 if this one did, else 0 (RLUF). The probability is the truth that an A/B test measures; a
    method may only see `reacted`, which is drawn by seed, round, prompt and answer. Every answer is shown
    once, and no reaction is not dislike.
    """
    chances = [[chance(value, scale, offset) for value in rewards_of(group, reward)] for group in groups]
    drawn = [
        [
            float(random.Random(f"{ctx.seed}/{ctx.round}/{group.prompt.id}/{i}/reaction").random() < p)
            for i, p in enumerate(row)
        ]
        for group, row in zip(groups, chances, strict=True)
    ]
    return {"reward.reaction": chances, "reacted": drawn}
