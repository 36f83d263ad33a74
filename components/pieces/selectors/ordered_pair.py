"""Selector `ordered_pair`: the two answers of each prompt as a pair, with ties kept."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.pieces.selectors.pairs import pair
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), writes=("margin",), compares=True, makes="pairs", paper="arXiv:2311.13231")
def ordered_pair(
    groups: Sequence[Group], ctx: Context, *, reward: str = "reward.reward_model"
) -> list[Group]:
    """One pair per prompt, of its two answers, the better one first (D3PO, section 4.3). Equal rewards make a
    pair too, in sampling order and with a `margin` of 0, for an objective that reads it and gives them no
    gradient; they are counted as `ties`. A prompt of which one answer is left (the other failed) makes none.
    `DataError` for one with more than two.
    """
    made = []
    for group in groups:
        if len(group.trajectories) > 2:
            raise DataError(
                f"ordered_pair: prompt {group.prompt.id!r}: expected at most two answers, got "
                f"{len(group.trajectories)}; set rollout.responses_per_prompt to 2, or use best_worst"
            )
        values = rewards_of(group, reward)
        if len(values) < 2:
            ctx.counts["groups of one answer"] += 1
        elif values[0] == values[1]:
            ctx.counts["ties"] += 1
            made.append(group.with_columns(margin=[0.0, 0.0]))
        else:
            made += pair(group, int(values[1] > values[0]), int(values[0] > values[1]), values, ctx, reward)
    return made
