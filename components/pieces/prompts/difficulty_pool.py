"""Prompt sampler `difficulty_pool`: prefers prompts of intermediate success rate."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import BelowOne, Share
from ratchet.components.types import Group, Prompt


@piece(reads=("{reward}",), paper="arXiv:2504.03380")
class DifficultyPool:
    """Samples prompts with weight p (1 - p) + floor, where p is the running mean of rewards in [0, 1] of the
    prompt (1/2 if unseen); with floor 0, those always or never solved only when no others are left. Stateful:
    `update` is called with scored groups; without updates sampling is uniform.

    The paper bounds the expected improvement from below by the variance p (1 - p) of the success and filters
    a step's prompts by it; sampling by it from earlier steps is ours.
    """

    def __init__(
        self, *, reward: str = "reward.exact_answer", floor: Share = 0.02, momentum: BelowOne = 0.5
    ) -> None:
        self.reward, self.floor, self.momentum = reward, floor, momentum
        self.solved: dict[str, float] = {}

    def __call__(
        self, prompts: Sequence[Prompt], count: int, round: int, rounds: int, seed: int
    ) -> list[Prompt]:
        if count > len(prompts):
            raise RecipeError(
                "the sampler `difficulty_pool` draws no prompt twice in a round: prompts_per_round is "
                f"{count}, the data set has {len(prompts)} prompts; lower it to {len(prompts)} or fewer"
            )
        rng = random.Random(f"{seed}/{round}")
        keyed = []
        for prompt in sorted(prompts, key=lambda p: p.id):
            p, u = self.solved.get(prompt.id, 0.5), rng.random()
            weight = p * (1 - p) + self.floor
            # weighted sampling without replacement: the order of u^(1/weight), which may underflow
            rank = math.log(u) / weight if u and weight else -math.inf
            keyed.append((-rank, u, prompt.id, prompt))
        return [prompt for *_, prompt in sorted(keyed, key=lambda k: k[:3])[:count]]

    def update(self, groups: Sequence[Group]) -> None:
        """Update the running means from scored groups; rewards are clipped to [0, 1]."""
        for group in groups:
            rewards = rewards_of(group, self.reward)
            mean = min(max(sum(rewards) / len(rewards), 0.0), 1.0)
            before = self.solved.get(group.prompt.id)
            self.solved[group.prompt.id] = (
                mean if before is None else self.momentum * before + (1 - self.momentum) * mean
            )

    def state(self) -> dict[str, Any]:
        return {"solved": dict(self.solved)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.solved = dict(state["solved"])
