"""Selector `flip_labels`: simulated annotation noise."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Share
from ratchet.components.types import Context, Group


@piece(reads=("margin",), paper="arXiv:2401.06080")
def flip_labels(groups: Sequence[Group], ctx: Context, *, share: Share = 0.0) -> list[Group]:
    """Swap chosen and rejected in a `share` of the pairs. The choice depends on seed, prompt id and the
    pair's place; columns stay in place (the margin remains the label's margin).
    """
    made = []
    for number, group in enumerate(groups):
        drawn = (
            int.from_bytes(
                hashlib.sha256(f"{ctx.seed}/flip/{group.prompt.id}/{number}".encode()).digest()[:8]
            )
            / 2**64
        )
        if drawn < share:
            ctx.counts["labels flipped"] += 1
            group = Group(group.prompt, group.trajectories[::-1], group.columns)
        made.append(group)
    return made
