"""Measure `unshifted`: tokens that another model would have chosen too."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Context, Group, Request


@piece(paper="arXiv:2312.01552")
def unshifted(
    groups: Sequence[Group], ctx: Context, *, model: str = "base", rank: Count = 1
) -> list[list[float]]:
    """Token distribution shift (Lin et al., section 2): share of an answer's tokens, end of turn included,
    that are among the `rank` likeliest of `model` after the same tokens before them. With greedy answers,
    `rank` 1 is the share of unshifted positions, and 1 minus the value at `rank` 3 that of shifted ones. 1
    for an empty answer.
    """
    engine = ctx.models[model]
    requests, places = [], []
    shares: list[list[list[float]]] = [[[] for _ in group.trajectories] for group in groups]
    for g, group in enumerate(groups):
        for i, trajectory in enumerate(group.trajectories):
            tokens = list(trajectory.inputs["tokens"])
            for t, chosen in enumerate(trajectory.mask):
                if chosen:
                    requests.append(Request(tokens[:t], max_tokens=1, temperature=0.0, top_logprobs=rank))
                    places.append((g, i, tokens[t]))
    for (g, i, token), [sample] in zip(places, engine.generate(requests), strict=True):
        shares[g][i].append(float(token in [one for one, _ in sample.top[0]]))
    return [[sum(row) / len(row) if row else 1.0 for row in rows] for rows in shares]
