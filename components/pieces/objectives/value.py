"""Value function objective (critic loss)."""

from __future__ import annotations

import torch

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Batch, Outputs, Terms


@piece(reads=("returns", "values.old"), outputs=("values",), unit="step", paper="arXiv:1707.06347")
def value(out: Outputs, batch: Batch, *, clip: Positive | None = 0.2) -> Terms:
    """(V - return)^2 / 2, half the squared error of the predicted value, one term per step (PPO eq. 9, L^VF).

    With `clip`, the maximum of that error and the error of the value clipped to within `clip` of
    `values.old`, as in the paper's released code. The metric `explained` is 1 where the value is closer to
    the return than the old value (ties 1/2).
    """
    target, old = batch["returns"], batch["values.old"]
    error = (out.values - target) ** 2
    nearer = ((old - target).abs() - (out.values.detach() - target).abs()).sign()
    metrics = {"explained": (nearer + 1) / 2, "value": out.values.detach()}
    if clip is None:
        return Terms(error / 2, metrics)
    bounded = (old + (out.values - old).clamp(-clip, clip) - target) ** 2
    return Terms(torch.maximum(error, bounded) / 2, {**metrics, "clipped": (bounded > error).to(error.dtype)})
