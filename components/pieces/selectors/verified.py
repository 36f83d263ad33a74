"""Selector `verified`: SFT demonstrations from verified answers (rejection sampling)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.evaluation.diversity import repetition
from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Count, Finite, Share
from ratchet.components.types import Context, Group, Trajectory


def likelihood(trajectory: Trajectory) -> float:
    """Mean log-prob per sampled token by the sampler, in nats; -inf without sampler log-probs."""
    sampled = [p for p, chosen in zip(trajectory.logprobs or (), trajectory.mask, strict=False) if chosen]
    return sum(sampled) / len(sampled) if sampled else -math.inf


@piece(reads=("{reward}", "logprobs.sampled"), makes="answers", paper="arXiv:2308.01825")
def verified(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str = "reward.instructions",
    at_least: Finite = 1.0,
    max_repetition: Share = 0.4,
    keep: Count = 1,
) -> list[Group]:
    """Groups of one: the `keep` most likely answers of a prompt (mean log-prob per token under the sampler)
    with a reward of at least `at_least` and a word repetition of at most `max_repetition` (rejection
    sampling, RFT). Duplicates count once; answers without log-probs rank last; prompts without such an answer
    are dropped.

    Ranking by least repetition would select the shortest answers, and a model trained on those unlearns long
    answers.
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
