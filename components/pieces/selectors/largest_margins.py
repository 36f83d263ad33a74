"""Selector `largest_margins`: the pairs on which the reward model is most confident."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import part
from ratchet.components.recipes.ranges import PositiveShare
from ratchet.components.types import Context, Group


@piece(reads=("margin",), paper="arXiv:2401.12086")
def largest_margins(groups: Sequence[Group], ctx: Context, *, share: PositiveShare = 0.5) -> list[Group]:
    """The `share` of pairs with the largest margin, rounded up, in their order (confidence filter of
    West-of-N); ties go to the earlier pair. Unlike a fixed `min_margin`, it does not depend on the reward
    model's scale. `RecipeError` for a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise RecipeError(f"largest_margins: 'share' must be above 0 and at most 1, got {share}")
    order = sorted(range(len(groups)), key=lambda i: -groups[i].columns["margin"][0])
    kept = sorted(order[: math.ceil(part(groups, share))])
    ctx.counts["margins below the largest"] += len(groups) - len(kept)
    return [groups[i] for i in kept]
