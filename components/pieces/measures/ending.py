"""Does an answer end by itself?"""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece()
def ending(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    """1 for an answer that the policy ended with its end-of-turn token, 0 for one that the token limit cut."""
    return [[float(t.stop == "end") for t in group.trajectories] for group in groups]
