"""Ratings of a simulated annotator."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Names, NotNegative
from ratchet.components.types import Columns, Context, Group


def rating(value: float, highest: int) -> int:
    """A number in [0, 1] as an integer from 1 to `highest`; numbers outside count as the nearest end.

    >>> [rating(v, 5) for v in (-0.2, 0.0, 0.4, 0.65, 1.3)]
    [1, 1, 3, 4, 5]
    """
    return round(1 + (highest - 1) * min(1.0, max(0.0, value)))


@piece(reads=("{rewards}",), writes=("reward.rating",), paper="arXiv:2310.01377")
def ratings(
    groups: Sequence[Group],
    ctx: Context,
    *,
    rewards: Names,
    by: Literal["aspect", "answer"] = "aspect",
    noise: NotNegative = 0.15,
) -> Columns:
    """`reward.rating` of an annotator who errs: `rewards` are columns in [0, 1], one an aspect of quality.
    `by` aspect: the mean of integer ratings from 1 to 5, one an aspect (UltraFeedback's fine-grained scores);
    `by` answer: one rating of the mean of the aspects, from 1 to 10 (its overall score). Before rounding
    every rating has its own Gaussian error of `noise`, a function of seed, round, prompt, answer and aspect.
    """
    rows = []
    for group in groups:
        aspects = list(zip(*(rewards_of(group, name) for name in rewards), strict=True))
        seed = f"{ctx.seed}/{ctx.round}/{group.prompt.id}"
        if by == "answer":
            rated = [
                float(rating(fmean(values) + noise * random.Random(f"{seed}/{i}").gauss(), 10))
                for i, values in enumerate(aspects)
            ]
        else:
            rated = [
                fmean(
                    rating(value + noise * random.Random(f"{seed}/{i}/{name}").gauss(), 5)
                    for name, value in zip(rewards, values, strict=True)
                )
                for i, values in enumerate(aspects)
            ]
        rows.append(rated)
    return {"reward.rating": rows}
