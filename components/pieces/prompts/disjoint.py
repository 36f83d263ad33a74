"""Prompt sampler `disjoint`: new prompts in every round."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece
from ratchet.components.types import Prompt


@piece(paper="arXiv:2405.07863")
def disjoint(prompts: Sequence[Prompt], count: int, round: int, rounds: int, seed: int) -> list[Prompt]:
    """`count` prompts of round `round` (from 1) that no other round uses: one seeded shuffle, cut in order.
    `RecipeError` if there are too few.
    """
    if count * rounds > len(prompts):
        fewer = f"lower prompts_per_round to {len(prompts) // rounds} or fewer, or "
        raise RecipeError(
            f"the sampler `disjoint` uses no prompt twice: {rounds} rounds of {count} prompts need "
            f"{count * rounds}, the data set has {len(prompts)}; {fewer if len(prompts) >= rounds else ''}"
            "use fewer rounds"
        )
    order = sorted(prompts, key=lambda p: p.id)  # independent of file order
    random.Random(seed).shuffle(order)
    return order[(round - 1) * count : round * count]
