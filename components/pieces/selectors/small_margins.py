"""Selector `small_margins`: the pairs about which the reward model is least certain."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import first_share
from ratchet.components.recipes.ranges import PositiveShare
from ratchet.components.types import Context, Group


@piece(reads=("margin",), paper="arXiv:cmp-lg/9407020")
def small_margins(groups: Sequence[Group], ctx: Context, *, share: PositiveShare = 0.5) -> list[Group]:
    """The `share` of pairs with the smallest absolute margin, to be labelled (uncertainty sampling: the
    preference probability is nearest to 1/2). Small margins are often ties, which cost a label and teach
    nothing.
    """
    return first_share(
        groups,
        [abs(group.columns["margin"][0]) for group in groups],
        share,
        ctx,
        "margins above the smallest",
    )
