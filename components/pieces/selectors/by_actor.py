"""Selector `by_actor`: the answers of one actor."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece(paper="arXiv:2312.00886")
def by_actor(groups: Sequence[Group], ctx: Context, *, actor: str = "policy") -> list[Group]:
    """The answers that `actor` gave, such as the policy's without its opponents' (Nash-MD, whose gradient is
    over the policy's answers); empty groups are dropped.
    """
    kept = []
    for group in groups:
        own = [i for i, t in enumerate(group.trajectories) if t.actor == actor]
        ctx.counts["answers of other actors"] += len(group.trajectories) - len(own)
        if own:
            kept.append(group.take(own))
    return kept
