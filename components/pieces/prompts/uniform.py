"""Prompt sampler `uniform`: independent random prompts in every round."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece
from ratchet.components.types import Prompt


@piece(paper="arXiv:2402.03300")
def uniform(prompts: Sequence[Prompt], count: int, round: int, rounds: int, seed: int) -> list[Prompt]:
    """`count` distinct prompts, uniformly at random; rounds are independent, so prompts may recur. Depends on
    seed and round only.
    """
    if count > len(prompts):
        raise RecipeError(
            f"the sampler `uniform` draws no prompt twice in a round: prompts_per_round is {count}, the data "
            f"set has {len(prompts)} prompts; lower it to {len(prompts)} or fewer"
        )
    return random.Random(f"{seed}/{round}").sample(sorted(prompts, key=lambda p: p.id), count)
