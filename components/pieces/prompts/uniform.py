"""Prompts drawn anew every round."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece
from ratchet.components.types import Prompt


@piece(paper="arXiv:2402.03300")
def uniform(prompts: Sequence[Prompt], count: int, round: int, rounds: int, seed: int) -> list[Prompt]:
    """`count` different prompts, each equally likely; rounds are independent, so they may meet again. Depends on seed and
    round alone.
    """
    if count > len(prompts):
        raise RecipeError(f"prompts uniform: {count} prompts a round were asked for, the data set has {len(prompts)}")
    return random.Random(f"{seed}/{round}").sample(sorted(prompts, key=lambda p: p.id), count)
