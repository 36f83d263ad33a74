"""Selector `best_worst`: the best against the worst answer of each prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import pair, penalised_rewards
from ratchet.components.recipes.ranges import NotNegative
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), writes=("margin",), compares=True, makes="pairs", paper="arXiv:2405.07863")
def best_worst(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str = "reward.reward_model",
    min_margin: NotNegative = 0.0,
    length_penalty: NotNegative = 0.0,
) -> list[Group]:
    """One pair per prompt: highest against lowest r - length_penalty x tokens (RLHF Workflow's max-min).
    Ties, margins under `min_margin` and identical texts are dropped; among equals the earlier sample is
    taken.
    """
    made = []
    for group in groups:
        values = penalised_rewards(group, reward, length_penalty)
        best, worst = (
            max(range(len(values)), key=values.__getitem__),
            min(range(len(values)), key=values.__getitem__),
        )
        made += pair(group, best, worst, values, ctx, reward, min_margin)
    return made
