"""Reward along a prompt's preference direction."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Names
from ratchet.components.types import OK, Columns, Context, Group


@piece(reads=("{rewards}",), writes=("reward.direction", "reward.direction.status"), paper="arXiv:2402.18571")
def direction(groups: Sequence[Group], ctx: Context, *, rewards: Names) -> Columns:
    """`reward.direction`: the inner product v . (r_1, ..., r_k) of the rewards with the unit vector
    `meta["direction"]` that the transform `directions` wrote to the prompt (DPA). The rewards should be
    on one scale, else the direction has no meaning.
    """
    made = []
    for group in groups:
        vector = group.prompt.meta["direction"]
        columns = [rewards_of(group, name) for name in rewards]
        made.append(
            [sum(v * r for v, r in zip(vector, row, strict=True)) for row in zip(*columns, strict=True)]
        )
    return {"reward.direction": made, "reward.direction.status": [[OK] * len(row) for row in made]}
