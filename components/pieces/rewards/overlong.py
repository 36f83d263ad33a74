"""Soft penalty for answers near the length limit."""

from __future__ import annotations

from ratchet.components.piece import each, piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.overlong", "reward.overlong.status"), paper="arXiv:2503.14476")
@each
def overlong(prompt: Prompt, trajectory: Trajectory, *, maximum: Count = 256, cache: Count = 64) -> float:
    """0 up to `maximum - cache` tokens, then linear to -1 at `maximum` and beyond (DAPO, eq. 13). A `cache`
    above `maximum` is `maximum`.
    """
    cache = min(cache, maximum)
    over = sum(trajectory.mask) - (maximum - cache)
    return -min(max(over / cache, 0.0), 1.0)
