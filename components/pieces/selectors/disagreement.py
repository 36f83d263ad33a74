"""Selector `disagreement`: the pairs about which a reward ensemble disagrees."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import first_share
from ratchet.components.recipes.ranges import PositiveShare
from ratchet.components.types import Context, Group


@piece(reads=("{members}",), paper="arXiv:1706.03741")
def disagreement(
    groups: Sequence[Group], ctx: Context, *, members: list, share: PositiveShare = 0.5
) -> list[Group]:
    """The `share` of pairs with the largest variance over the members of an ensemble, to be labelled (section
    2.2.4). `members`: columns of the members' scores, such as those that `rewards.ensemble` writes. A
    member's score differences are first divided by their root mean square over the pairs, since
    Bradley-Terry scores have arbitrary scale. `RecipeError` for fewer than two members.
    """
    if len(members) < 2:
        raise RecipeError(f"disagreement: 'members' needs two or more columns of scores, got {members}")
    scaled = []
    for name in members:
        gaps = [group.columns[name][0] - group.columns[name][1] for group in groups]
        size = (statistics.fmean(gap**2 for gap in gaps) if gaps else 0.0) ** 0.5 or 1.0
        scaled.append([gap / size for gap in gaps])
    ranks = [-statistics.pvariance(row) for row in zip(*scaled, strict=True)]
    return first_share(groups, ranks, share, ctx, "pairs with less disagreement")
