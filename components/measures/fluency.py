"""How natural an answer is to a model that nothing was trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from components.piece import piece
from components.types import Context, Group


@piece()
def fluency(groups: Sequence[Group], ctx: Context, *, model: str = "base") -> list[list[float]]:
    """Mean log-prob an answer's token, end of turn included, under `model` at temperature 1, in nats: minus the logarithm of the
    perplexity of the answer. Higher is more fluent.
    """
    engine = ctx.models[model]
    bare = [g.replace([dataclasses.replace(t, inputs={}, mask=(), logprobs=None) for t in g.trajectories]) for g in groups]
    encoded = [engine.encode(group) for group in bare]
    found = []
    for group, row in zip(encoded, engine.score(encoded, frozenset({"logprobs"})), strict=True):
        kept = [[p for p, chosen in zip(steps, t.mask, strict=True) if chosen] for t, steps in zip(group.trajectories, row["logprobs"], strict=True)]
        found.append([sum(steps) / len(steps) if steps else 0.0 for steps in kept])
    return found
