"""Preference losses on pairs (chosen first): DPO and relatives. One term per pair, (U,).

z = (log pi/ref of the chosen) - (log pi/ref of the rejected), with log-probs summed over each answer's loss
mask. Metrics (U,): `margin` is beta z (the implicit reward margin); `accuracy` is 1 for z > 0, 1/2 for z = 0
(our tie rule: policy = reference gives chance level), else 0; `rewards/chosen` and `rewards/rejected` are
beta log pi/ref of each side.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import BelowHalf, Bool, NotNegative, Positive
from ratchet.components.types import Batch, Outputs, Terms


def log_ratios(out: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """log pi/ref of the chosen and the rejected answers, each (U,)."""
    steps = torch.where(batch.mask, out.logprobs - batch["logprobs.reference"], 0.0)
    return batch.pair(batch.row_sum(steps))


def accuracy(margin: Tensor) -> Tensor:
    """1, 1/2 or 0 for a positive, zero or negative margin."""
    return (margin.sign() + 1) / 2


def terms(loss: Tensor, chosen: Tensor, rejected: Tensor) -> Terms:
    """A pair loss with the four usual metrics, from the implicit rewards of both sides."""
    margin = (chosen - rejected).detach()
    return Terms(
        loss,
        {
            "margin": margin,
            "accuracy": accuracy(margin),
            "rewards/chosen": chosen.detach(),
            "rewards/rejected": rejected.detach(),
        },
    )


@piece(reads=("logprobs.reference",), outputs=("logprobs",), unit="pair", paper="arXiv:2305.18290")
def dpo(out: Outputs, batch: Batch, *, beta: Positive = 0.1) -> Terms:
    """Direct preference optimisation (eq. 7): -log sigmoid(beta z), with z = log pi/ref of the chosen answer
    minus log pi/ref of the rejected one.
    """
    chosen, rejected = log_ratios(out, batch)
    return terms(-logsigmoid(beta * (chosen - rejected)), beta * chosen, beta * rejected)


@piece(reads=("logprobs.reference",), outputs=("logprobs",), unit="pair", paper="arXiv:2305.18290")
def cdpo(out: Outputs, batch: Batch, *, beta: Positive = 0.1, label_smoothing: BelowHalf = 0.1) -> Terms:
    """Conservative DPO: a share `label_smoothing` of labels is assumed flipped (Mitchell 2023, "A note on DPO
    with noisy preferences"): -(1-e) log sigmoid(beta z) - e log sigmoid(-beta z), with z as in
    `preference.dpo`. RLHF Workflow (arXiv 2405.07863) uses 0.1.
    """
    chosen, rejected = log_ratios(out, batch)
    z = beta * (chosen - rejected)
    loss = -(1 - label_smoothing) * logsigmoid(z) - label_smoothing * logsigmoid(-z)
    return terms(loss, beta * chosen, beta * rejected)


@piece(reads=("logprobs.reference",), outputs=("logprobs",), unit="pair", paper="arXiv:2310.12036")
def ipo(out: Outputs, batch: Batch, *, beta: Positive = 0.1) -> Terms:
    """Identity preference optimisation (eq. 17): (z - 1/(2 beta))^2, where beta is the paper's tau. Log-probs
    are summed over an answer, as in the paper; some libraries average them.
    """
    chosen, rejected = log_ratios(out, batch)
    return terms((chosen - rejected - 1 / (2 * beta)) ** 2, beta * chosen, beta * rejected)


@piece(reads=("logprobs.reference",), outputs=("logprobs",), unit="pair", paper="arXiv:2309.06657")
def hinge(out: Outputs, batch: Batch, *, beta: Positive = 0.1) -> Terms:
    """Hinge loss on the DPO margin (RSO, SLiC with a reference): max(0, 1 - beta z), where beta is the
    paper's gamma.
    """
    chosen, rejected = log_ratios(out, batch)
    return terms((1 - beta * (chosen - rejected)).clamp(min=0), beta * chosen, beta * rejected)


@piece(outputs=("logprobs",), unit="pair", paper="arXiv:2405.14734")
def simpo(out: Outputs, batch: Batch, *, beta: Positive = 2.0, gamma: NotNegative = 1.0) -> Terms:
    """SimPO (eq. 6): -log sigmoid(beta (mean log p chosen - mean log p rejected) - gamma). Reference-free;
    gamma is the target margin in units of reward, not its ratio to beta.
    """
    chosen, rejected = batch.pair(batch.row_mean(out.logprobs))
    return terms(-logsigmoid(beta * (chosen - rejected) - gamma), beta * chosen, beta * rejected)


@piece(outputs=("logprobs",), unit="pair", paper="arXiv:2403.07691")
def orpo(out: Outputs, batch: Batch) -> Terms:
    """Odds-ratio term of ORPO (eq. 7): -log sigmoid(log odds chosen - log odds rejected), where p is the
    geometric mean over an answer's tokens. The full ORPO loss is this with weight 0.1 plus
    `preference.chosen` with `per_token`.
    """
    means = batch.row_mean(out.logprobs).clamp(max=-1e-7)  # p = 1 has no finite odds
    odds = means - torch.log(-torch.expm1(means))
    chosen, rejected = batch.pair(odds)
    return terms(-logsigmoid(chosen - rejected), chosen, rejected)


@piece(outputs=("logprobs",), unit="pair", paper="arXiv:2404.19733")
def chosen(out: Outputs, batch: Batch, *, per_token: Bool = True) -> Terms:
    """Negative log-likelihood of the chosen answer, to be combined with a pair loss: mean over its tokens
    (iterative RPO) or sum.
    """
    rows = batch.row_mean(out.logprobs) if per_token else batch.row_sum(out.logprobs)
    return Terms(-batch.pair(rows)[0])
