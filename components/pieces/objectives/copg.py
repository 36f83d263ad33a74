"""Contrastive policy gradient: regression of reward differences, for answers of any policy."""

from __future__ import annotations

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.preference import log_ratios, terms
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Batch, Outputs, Terms


@piece(reads=("{reward}", "logprobs.reference"), outputs=("logprobs",), unit="pair", paper="arXiv:2406.19185")
def copg(out: Outputs, batch: Batch, *, reward: str = "reward.reward_model", beta: Positive = 0.1) -> Terms:
    """((R - R') - beta (l - l'))^2 / (2 beta), one term per pair of answers, (U,), with l = log pi/ref summed
    over an answer. Its negative gradient is (R_beta - R'_beta) (grad log pi(y) - grad log pi(y')), where
    R_beta = R - beta l: a policy gradient in which each answer is the other's baseline. The
    minimiser is ref exp(R / beta) / Z whichever policy sampled the pairs. The paper leaves beta to a sweep.

    R = 1 and 0 at policy = reference, with beta = 0.5: (1 - 0)^2 / 1 = 1.
    """
    chosen, rejected = log_ratios(out, batch)
    difference = batch.margin(batch[reward]) - beta * (chosen - rejected)
    return terms(difference**2 / (2 * beta), beta * chosen, beta * rejected)
