"""Demonstrations: the best verified answers of each prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.evaluation.diversity import repetition
from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Count, Finite, Share
from ratchet.components.types import Context, Group, Trajectory


def likelihood(trajectory: Trajectory) -> float:
    """Mean log-prob of the sampled tokens by the sampler, in nats a token; minus infinity where nobody sampled them from this prompt."""
    sampled = [p for p, chosen in zip(trajectory.logprobs or (), trajectory.mask, strict=False) if chosen]
    return sum(sampled) / len(sampled) if sampled else -math.inf


@piece(reads=("{reward}", "logprobs.sampled"), makes="answers", paper="arXiv:2308.01825")
def verified(groups: Sequence[Group], ctx: Context, *, reward: str = "reward.instructions", at_least: Finite = 1.0,
             max_repetition: Share = 0.4, keep: Count = 1) -> list[Group]:
    """Groups of one: the `keep` most likely answers of a prompt, by mean log-prob a token of the model that sampled them, among those
    whose reward is `at_least` that much and of whose words no more than `max_repetition` were said before (rejection sampling, RFT).
    Copies count once; answers without log-probs come last; a prompt without such an answer is left out.

    Least repetition is no ranking: the shortest answers repeat nothing, and a model that imitates those alone forgets how to be long.
    """
    made: list[Group] = []
    for group in groups:
        good: dict[str, int] = {}
        for i, value in enumerate(rewards_of(group, reward)):
            if value >= at_least and repetition(group.trajectories[i].text) <= max_repetition:
                good.setdefault(group.trajectories[i].text.strip(), i)
        ctx.counts["prompts without a verified answer"] += not good
        ranked = sorted(good.values(), key=lambda i: -likelihood(group.trajectories[i]))
        made += [group.take([i]) for i in ranked[:keep]]
    return made
