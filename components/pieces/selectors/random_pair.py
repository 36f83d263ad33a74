"""Selector `random_pair`: a random pair of each prompt's answers."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import pair, penalised_rewards
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), writes=("margin",), compares=True, makes="pairs", paper="arXiv:2405.07863")
def random_pair(groups: Sequence[Group], ctx: Context, *, reward: str = "reward.reward_model") -> list[Group]:
    """One pair per prompt of two answers drawn without replacement, better one first: a baseline for
    `best_worst`. Ties and identical texts are dropped. The draw depends on seed, round and prompt id only.
    """
    made = []
    for group in groups:
        values = penalised_rewards(group, reward, 0.0)
        i, j = (
            random.Random(f"{ctx.seed}/{ctx.round}/{group.prompt.id}").sample(range(len(values)), 2)
            if len(values) > 1
            else (0, 0)
        )
        best, worst = (i, j) if values[i] > values[j] else (j, i)
        made += pair(group, best, worst, values, ctx, reward)
    return made
