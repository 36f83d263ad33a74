"""Every ordered pair of answers."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import judged, pair
from ratchet.components.recipes.ranges import NotNegative
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), writes=("margin",), compares=True, makes="pairs", paper="arXiv:2203.02155")
def all_pairs(groups: Sequence[Group], ctx: Context, *, reward: str = "reward.judge", min_margin: NotNegative = 0.0) -> list[Group]:
    """Each two answers of a prompt whose rewards differ, by at least `min_margin`, as a pair, the better one first: K
    answers give up to K(K-1)/2 pairs (InstructGPT, section 3.5). In order of sampling.
    """
    made = []
    for group in groups:
        values = judged(group, reward, 0.0)
        ctx.counts["groups of one answer"] += len(values) == 1
        for i in range(len(values)):
            for j in range(i + 1, len(values)):
                best, worst = (i, j) if values[i] > values[j] else (j, i)
                made += pair(group, best, worst, values, ctx, reward, min_margin)
    return made
