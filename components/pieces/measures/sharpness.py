"""Measure `sharpness`: how much the loss of an answer rises when the weights are perturbed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Positive, Seed
from ratchet.components.types import Context, Group

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine


@piece(models=("policy",), paper="arXiv:2410.16476")
def sharpness(
    groups: Sequence[Group],
    ctx: Context,
    *,
    rho: Positive = 0.05,
    draws: Count = 4,
    layer: str = "",
    seed: Seed = 0,
) -> list[list[float]]:
    """Average-case adaptive sharpness (Kwon et al., arXiv 2102.11600): mean over `draws` of L(theta + delta)
    - L(theta), delta ~ N(0, (rho |theta|)^2) elementwise, L the negative log-prob per token of the arm's own
    answer, encoded anew as a finished text, in nats. `layer`: perturb only parameters whose name contains it
    (layer-wise sharpness). The noise depends on `seed` alone, so that models of one architecture are
    perturbed alike. It needs the PyTorch engine.
    """
    engine = getattr(ctx.models["policy"], "local", ctx.models["policy"])
    model = getattr(engine, "model", None)
    if model is None:
        raise ContractError("sharpness: the engine gives no access to its weights; use `engine: torch`")
    bare = [
        g.replace([dataclasses.replace(t, inputs={}, mask=(), logprobs=None) for t in g.trajectories])
        for g in groups
    ]
    weights = {name: p for name, p in model.named_parameters() if layer in name}
    if not weights:
        raise ContractError(f"sharpness: no parameter of the model has {layer!r} in its name")
    before, risen = losses(engine, bare), [[0.0] * len(g.trajectories) for g in groups]
    for draw in range(draws):
        kept = {name: p.detach().clone() for name, p in weights.items()}
        perturb(weights, rho, seed + draw)
        try:
            after = losses(engine, bare)
        finally:
            for name, p in weights.items():
                p.data.copy_(kept[name])
        risen = [
            [r + (a - b) / draws for r, a, b in zip(*rows, strict=True)]
            for rows in zip(risen, after, before, strict=True)
        ]
    return risen


def perturb(weights: dict[str, Any], rho: float, seed: int) -> None:
    """Add Gaussian noise of standard deviation rho |theta| to each parameter, in the order of their names."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for _, p in sorted(weights.items()):
        noise = torch.randn(p.shape, generator=generator).to(p)
        p.data.add_(rho * p.data.abs() * noise)


def losses(engine: Engine, groups: Sequence[Group]) -> list[list[float]]:
    """Negative log-prob per token of each answer."""
    encoded = [engine.encode(group) for group in groups]
    rows = engine.score(encoded, frozenset({"logprobs"}))
    return [
        [-sum(s) / max(1, sum(t.mask)) for s, t in zip(row["logprobs"], g.trajectories, strict=True)]
        for row, g in zip(rows, encoded, strict=True)
    ]
