"""Clipped surrogate objectives (PPO, DAPO, GSPO).

`old` selects the log-probs of the earlier policy: `old` (recomputed by the trainer at the start of the
update) or `sampled` (the inference engine's, valid if both agree). Advantages are (B,T), or (B,) and then
equal for all steps of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Above1, NotNegative, Share
from ratchet.components.types import Batch, Outputs, Terms


def log_ratio(out: Outputs, batch: Batch, old: str) -> Tensor:
    """log pi/pi_old (B,T); 0 outside the loss mask, so that `exp` cannot overflow there."""
    return torch.where(batch.mask, out.logprobs - batch[f"logprobs.{old}"], 0.0)


def step_advantages(batch: Batch) -> Tensor:
    """Advantages (B,T), broadcast from (B,) if needed; 0 outside the loss mask."""
    advantages = batch["advantages"]
    return torch.where(batch.mask, advantages if advantages.dim() == 2 else advantages[:, None], 0.0)


def surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None) -> Terms:
    """-min(ratio A, clip(ratio) A), bounded by `dual` |A| for negative A. The metric `clipped` is 1 where the
    clip is active.
    """
    free, bounded = -ratio * advantages, -ratio.clamp(1 - low, 1 + high) * advantages
    loss = torch.maximum(free, bounded)
    clipped = (bounded > free).to(ratio.dtype)
    if dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual * advantages), loss)
    return Terms(loss, {"clipped": clipped, "ratio": ratio.detach()})


@piece(reads=("logprobs.{old}", "advantages"), outputs=("logprobs",), unit="step", paper="arXiv:1707.06347")
def clip(
    out: Outputs,
    batch: Batch,
    *,
    low: Share = 0.2,
    high: NotNegative = 0.2,
    dual: Above1 | None = None,
    old: str = "old",
) -> Terms:
    """PPO's clipped surrogate (eq. 7), one term per step. It is -min(ratio A, clip(ratio, 1 - low, 1 + high)
    A) with ratio = pi / pi_old. `high` > `low` is DAPO's clip-higher; `dual` (> 1) is the dual clip of arXiv
    1912.09729, which bounds the loss of negative advantages by `dual` |A|.
    """
    return surrogate(log_ratio(out, batch, old).exp(), step_advantages(batch), low, high, dual)


@piece(reads=("logprobs.{old}", "advantages"), outputs=("logprobs",), unit="row", paper="arXiv:2507.18071")
def row(
    out: Outputs, batch: Batch, *, low: Share = 0.0003, high: NotNegative = 0.0004, old: str = "old"
) -> Terms:
    """GSPO (eq. 5-7): -min(s A, clip(s, 1 - low, 1 + high) A), one term per row, where s, the geometric mean
    of its steps' ratios, is exp(mean of log pi/pi_old). The row's advantage is the mean over its steps.
    """
    ratio = batch.row_mean(log_ratio(out, batch, old)).exp()
    return surrogate(ratio, batch.row_mean(step_advantages(batch)), low, high, None)
