"""Two answers of each prompt, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import judged, pair
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), writes=("margin",), compares=True, makes="pairs", paper="arXiv:2405.07863")
def random_pair(groups: Sequence[Group], ctx: Context, *, reward: str = "reward.judge") -> list[Group]:
    """One pair a prompt of two answers drawn without replacement, the better one first: the control for `best_worst`. Ties
    and pairs of one same text vanish. The draw depends on seed, round and prompt id alone.
    """
    made = []
    for group in groups:
        values = judged(group, reward, 0.0)
        i, j = random.Random(f"{ctx.seed}/{ctx.round}/{group.prompt.id}").sample(range(len(values)), 2) if len(values) > 1 else (0, 0)
        best, worst = (i, j) if values[i] > values[j] else (j, i)
        made += pair(group, best, worst, values, ctx, reward)
    return made
