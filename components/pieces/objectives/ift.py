"""Intuitive fine-tuning: maximum likelihood on the model's own guesses, weighted by the later losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Bool, Share
from ratchet.components.types import Batch, Outputs, Terms

if TYPE_CHECKING:
    from ratchet.components.models.reading import Reading


def mixed(reading: Reading, *, share: float) -> Tensor:
    """log p(token t | e before t), (B,T): e mixes the embedding of each answer token with `share` of that of
    the model's guess of it (the likeliest token after the true tokens before it, without gradient).
    """
    embeddings = reading.embed(reading.tokens)
    if share:
        embeddings = embeddings.lerp(reading.embed(reading.guesses()), share)
    logprobs, _ = reading.logprobs(reading.before(reading.rerun(embeddings)))
    return reading.spread(logprobs)


@piece(readers={"mixed": "step"}, unit="step", paper="arXiv:2405.11870")
def ift(
    out: Outputs,
    batch: Batch,
    *,
    share: Share = 0.2,
    gamma: Share = 0.95,
    propagation: Literal["losses", "sum"] = "losses",
    detach_weights: Bool = False,
) -> Terms:
    """w_t l_t with l_t = -log p(token t | mixed embeddings before t), one term per step; to be reduced by
    `row_mean`. `share` is the paper's lambda. With `share` 0 and `gamma` 0 this is maximum likelihood.

    `losses`, as in the released code: w_t is the discounted sum of the losses from t on, scaled to mean 1
    over the answer, through which gradients flow unless `detach_weights`; `gamma` 0 means w = 1. `sum`, the
    paper's cumulative sum: w_t is the sum of gamma^(t - n) over the answer's steps n <= t.
    """
    losses = torch.where(batch.mask, -out.mixed, 0.0)
    later = torch.arange(losses.shape[1])
    distance = later[:, None] - later[None, :]  # of step k (row) after step t (column)
    decay = torch.where(distance >= 0, gamma ** distance.clamp(min=0).to(losses.dtype), 0.0)
    if propagation == "sum":
        weights = batch.mask.to(losses.dtype) @ decay.t()
    elif gamma == 0:
        weights = torch.ones_like(losses)
    else:
        weights = losses @ decay
        weights = weights / batch.row_mean(weights).clamp(min=1e-8)[:, None]
    weights = torch.where(batch.mask, weights, 0.0)
    return Terms(
        (weights.detach() if detach_weights else weights) * losses,
        {"likelihood": losses.detach(), "weight": weights.detach()},
    )
