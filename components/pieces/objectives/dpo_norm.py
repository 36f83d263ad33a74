"""Length-normalised DPO, the preference stage of Tulu 3."""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.preference import terms
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Batch, Outputs, Terms


@piece(reads=("logprobs.reference",), outputs=("logprobs",), unit="pair", paper="arXiv:2411.15124")
def dpo_norm(out: Outputs, batch: Batch, *, beta: Positive = 5.0) -> Terms:
    """-log sigmoid(beta (mean log pi/ref of the chosen - mean log pi/ref of the rejected)), one term per
    pair, (U,): DPO on per-token means instead of sums (Tulu 3, section 5; TRL's `sigmoid_norm`). beta is
    larger than DPO's by about the length of an answer.

    Log pi/ref -1 and 1 of the chosen, -2 of the rejected, with beta = 1: -log sigmoid(0 + 2) = 0.1269.
    """
    steps = torch.where(batch.mask, out.logprobs - batch["logprobs.reference"], 0.0)
    chosen, rejected = batch.pair(batch.row_mean(steps))
    return terms(-logsigmoid(beta * (chosen - rejected)), beta * chosen, beta * rejected)
