"""Selector `best_episodes`: draws from the best of all episodes so far."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Count, PositiveShare
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), makes="answers", paper="arXiv:2402.19446")
class BestEpisodes:
    """Filtered behaviour cloning: keeps the last `capacity` trajectories and returns `count` draws, with
    replacement, from those whose reward is at least that of the last one in the best `share`; ties count,
    so that there may be more. One group a draw. Stateful. The draw depends on seed and round only.
    """

    def __init__(
        self,
        *,
        reward: str = "reward.environment",
        share: PositiveShare = 0.1,
        count: Count = 64,
        capacity: Count = 100_000,
    ) -> None:
        self.reward, self.share, self.count, self.capacity = reward, share, count, capacity
        self.memory: list[Group] = []

    def __call__(self, groups: Sequence[Group], ctx: Context) -> list[Group]:
        single = [group.take([i]) for group in groups for i in range(len(group.trajectories))]
        self.memory = [*self.memory, *single][-self.capacity :]
        if not self.memory:
            return []
        rewards = [rewards_of(group, self.reward)[0] for group in self.memory]
        least = sorted(rewards, reverse=True)[max(1, round(self.share * len(rewards))) - 1]
        best = [group for group, reward in zip(self.memory, rewards, strict=True) if reward >= least]
        ctx.counts["episodes to imitate"] += len(best)
        return random.Random(f"{ctx.seed}/{ctx.round}").choices(best, k=self.count)

    def state(self) -> dict[str, Any]:
        return {"memory": list(self.memory)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.memory = list(state["memory"])
