"""Selector `replay`: replay buffer of earlier groups."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Share
from ratchet.components.types import Context, Group


@piece(paper="arXiv:2405.07863")
class Replay:
    """Adds `share` as many groups drawn from the last `capacity` earlier groups. Stateful. The draw depends
    on seed and round only.
    """

    def __init__(self, *, share: Share = 0.5, capacity: Count = 1024) -> None:
        self.share, self.capacity = share, capacity
        self.memory: list[Group] = []

    def __call__(self, groups: Sequence[Group], ctx: Context) -> list[Group]:
        count = min(round(self.share * len(groups)), len(self.memory))
        drawn = random.Random(f"{ctx.seed}/{ctx.round}").sample(self.memory, count)
        self.memory = [*self.memory, *groups][-self.capacity :]
        ctx.counts["groups replayed"] += count
        return [*groups, *drawn]

    def state(self) -> dict[str, Any]:
        return {"memory": list(self.memory)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.memory = list(state["memory"])
