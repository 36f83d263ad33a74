"""Selector `all_pairs`: all preference pairs of a prompt's answers."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import pair, penalised_rewards
from ratchet.components.recipes.ranges import NotNegative
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), writes=("margin",), compares=True, makes="pairs", paper="arXiv:2203.02155")
def all_pairs(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str = "reward.reward_model",
    min_margin: NotNegative = 0.0,
) -> list[Group]:
    """All pairs of a prompt's answers whose rewards differ by at least `min_margin`, better one first: up to
    K(K-1)/2 pairs of K answers (InstructGPT, section 3.5), in sampling order.
    """
    made = []
    for group in groups:
        values = penalised_rewards(group, reward, 0.0)
        ctx.counts["groups of one answer"] += len(values) == 1
        for i in range(len(values)):
            for j in range(i + 1, len(values)):
                best, worst = (i, j) if values[i] > values[j] else (j, i)
                made += pair(group, best, worst, values, ctx, reward, min_margin)
    return made
