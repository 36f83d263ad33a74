"""Measure `kl`: divergence of an arm's model from another model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece(models=("policy",), paper="arXiv:2312.14925")
def kl(groups: Sequence[Group], ctx: Context, *, model: str = "base") -> list[list[float]]:
    """log pi(y) - log p(y) of an answer y in nats, p being `model`: its mean over sampled answers is an
    unbiased estimate of KL(pi || p). For answers decoded otherwise (greedy, best of n) it is the log-ratio of
    these.
    """
    bare = [
        g.replace([dataclasses.replace(t, inputs={}, mask=(), logprobs=None) for t in g.trajectories])
        for g in groups
    ]
    mine, theirs = (
        _sums(ctx.models[name], bare) for name in ("policy", model)
    )  # one after the other: an engine may hold one model at a time
    return [[a - b for a, b in zip(*rows, strict=True)] for rows in zip(mine, theirs, strict=True)]


def _sums(engine, groups: Sequence[Group]) -> list[list[float]]:
    """Log-probability of each answer."""
    scored = engine.score([engine.encode(group) for group in groups], frozenset({"logprobs"}))
    return [[sum(steps) for steps in row["logprobs"]] for row in scored]
