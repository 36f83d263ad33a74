"""Measure `fluency`: log-likelihood of an answer under an independent model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ratchet.components.evaluation.copying import copied
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group, Trajectory


@piece()
def fluency(groups: Sequence[Group], ctx: Context, *, model: str = "base") -> list[list[float]]:
    """Mean log-prob per answer token under `model` at temperature 1, in nats (the negative log-perplexity) of
    the text as a finished one: the end of turn is included, also of an answer that was cut. Tokens copied
    from the prompt in runs of five or more are excluded unless nothing else remains, since copied text gets a
    high probability whatever its quality.
    """
    engine = ctx.models[model]
    bare = [
        g.replace([dataclasses.replace(t, inputs={}, mask=(), logprobs=None) for t in g.trajectories])
        for g in groups
    ]
    encoded = [engine.encode(group) for group in bare]
    found = []
    for group, row in zip(encoded, engine.score(encoded, frozenset({"logprobs"})), strict=True):
        kept = [own_logprobs(t, steps) for t, steps in zip(group.trajectories, row["logprobs"], strict=True)]
        found.append([sum(steps) / len(steps) if steps else 0.0 for steps in kept])
    return found


def own_logprobs(trajectory: Trajectory, logprobs: Sequence[float]) -> list[float]:
    """Log-probs of the answer's tokens that are not copied from tokens that the model did not write;
    all of them if everything is copied.
    """
    tokens, chosen = (
        list(trajectory.inputs["tokens"]),
        [i for i, answered in enumerate(trajectory.mask) if answered],
    )
    flags = copied(
        [tokens[i] for i in chosen],
        [token for token, answered in zip(tokens, trajectory.mask, strict=True) if not answered],
    )
    own = [logprobs[i] for i, taken in zip(chosen, flags, strict=True) if not taken]
    return own or [logprobs[i] for i in chosen]
