"""Advantage piece `fixed`: reward minus a constant."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Finite
from ratchet.components.types import Columns, Context, Group


@piece(reads=("{reward}",), writes=("advantages",), paper="arXiv:2312.00886")
def fixed(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str | list = "reward.reward_model",
    baseline: Finite = 0.5,
) -> Columns:
    """r - baseline, one number per trajectory. The default is the expected preference over an equal opponent
    (Nash-MD, eq. 9: P(y > y') - 1/2).
    """
    return {"advantages": [[r - baseline for r in rewards_of(group, reward)] for group in groups]}
