"""Selector `uniform`: a random share of the groups."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import drawn, first_share
from ratchet.components.recipes.ranges import PositiveShare
from ratchet.components.types import Context, Group


@piece(paper="arXiv:1706.03741")
def uniform(groups: Sequence[Group], ctx: Context, *, share: PositiveShare = 0.5) -> list[Group]:
    """A `share` of the groups, drawn at random, in their order: the control of the selectors that choose what
    is labelled. The draw depends on seed, round and the number of groups only.
    """
    order = drawn(range(len(groups)), f"{ctx.seed}/{ctx.round}/uniform")
    ranks = [0] * len(groups)
    for rank, index in enumerate(order):
        ranks[index] = rank
    return first_share(groups, ranks, share, ctx, "groups not drawn")
