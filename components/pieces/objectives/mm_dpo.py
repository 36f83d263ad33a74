"""DPO whose beta grows with the pair's reward margin."""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.preference import log_ratios, terms
from ratchet.components.recipes.ranges import NotNegative, Positive
from ratchet.components.types import Batch, Outputs, Terms


@piece(reads=("logprobs.reference", "margin"), outputs=("logprobs",), unit="pair", paper="arXiv:2502.10391")
def mm_dpo(
    out: Outputs, batch: Batch, *, beta: Positive = 0.1, scale: NotNegative = 0.5, rate: Positive = 0.5
) -> Terms:
    """DPO with dynamic reward scaling (MM-RLHF): -log sigmoid(beta(m) z), z as in `preference.dpo`, with
    beta(m) = beta (1 + scale (1 - exp(-rate m))) for a pair whose rewards differ by m, so that clear pairs
    push harder; one term per pair, (U,). `margin` is read from the chosen row, without gradient, and counts
    as 0 where it is negative. The metric `beta` is beta(m). The paper adds 0.25 x the likelihood of the
    chosen answer: `preference.chosen`.

    At policy = reference every term is log 2; scale = 0 is DPO.
    """
    chosen, rejected = log_ratios(out, batch)
    gap = batch.pair(batch["margin"])[0].clamp(min=0)
    strength = beta * (1 - scale * torch.expm1(-rate * gap))
    found = terms(-logsigmoid(strength * (chosen - rejected)), strength * chosen, strength * rejected)
    return Terms(found.loss, {**found.metrics, "beta": strength})
