"""Variational preference learning: a reward that depends on a latent of the user, inferred from labelled
pairs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, NotNegative
from ratchet.components.types import Batch, Outputs, Terms

if TYPE_CHECKING:
    from ratchet.components.models.reading import Reading

BOUND = 1.0
"""Largest absolute mean and log variance of the posterior, as in the released code."""
NODES = 12
"""Nodes of the Gauss-Hermite quadrature over the latent."""


def shared(reading: Reading) -> Tensor:
    """b(s), (B,): the part of an answer's reward that all users share."""
    return answer_states(reading, 1)[:, 0]


def taste(reading: Reading, *, latent: Count) -> Tensor:
    """f(s), (B,K): what the latent of a user is multiplied with."""
    return _part(reading, latent, 0)


def evidence(reading: Reading, *, latent: Count) -> Tensor:
    """g(s), (B,K): what a labelled answer adds to (chosen) or takes from (rejected) the posterior's mean."""
    return _part(reading, latent, 1)


def spread(reading: Reading, *, latent: Count) -> Tensor:
    """h(s), (B,K): what a labelled answer adds to the posterior's log variance."""
    return _part(reading, latent, 2)


def _part(reading: Reading, latent: int, number: int) -> Tensor:
    start = 1 + number * latent
    return answer_states(reading, start + latent)[:, start:]


def answer_states(reading: Reading, width: int) -> Tensor:
    """(B, width): the first coordinates of the mean of the last hidden states over an answer's tokens; 0 for
    a row without any. `ContractError` if the model has fewer coordinates.
    """
    hidden = reading.hidden
    if width > hidden.shape[1]:
        raise ContractError(
            f"variational_preference: a latent of this size reads {width} coordinates of the last hidden "
            f"state, which has {hidden.shape[1]}; lower `latent`"
        )
    rows = []
    for index, mask in zip(reading.plan.index, reading.batch.mask, strict=True):
        places = index[mask[: len(index)]].to(hidden.device)
        rows.append(hidden[places, :width].float().sum(0) / max(1, len(places)))
    return torch.stack(rows)


def posterior(told: Tensor, variance: Tensor, group: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Mean and log variance, (U,K), of q(z | context) = N(mean, exp(log variance)): the means over the pairs
    of each group, both limited to [-1, 1]. `told`, (P,K): g(chosen) - g(rejected); `variance`, (P,K): mean of
    h over the pair; `group`, (P,): the group of each pair. The prior N(0, 1) for a group without pairs.
    """
    number = told.new_zeros(groups).index_add(0, group, told.new_ones(len(told)))[:, None].clamp(min=1)
    found = (told.new_zeros(groups, told.shape[1]).index_add(0, group, x) / number for x in (told, variance))
    mean, log_variance = (x.clamp(-BOUND, BOUND) for x in found)
    return mean, log_variance


def expected_logsigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """E log sigmoid(x) for x ~ N(mean, variance), elementwise, by Gauss-Hermite quadrature."""
    import numpy

    nodes, weights = (
        torch.as_tensor(x, dtype=mean.dtype, device=mean.device)
        for x in numpy.polynomial.hermite_e.hermegauss(NODES)
    )
    at = mean[..., None] + (variance + 1e-12).sqrt()[..., None] * nodes
    return (logsigmoid(at) * weights).sum(-1) / math.sqrt(2 * math.pi)


@piece(
    reads=("context",),
    readers={"shared": "row", "taste": "vector", "evidence": "vector", "spread": "vector"},
    unit="group",
    paper="arXiv:2408.10075",
)
def variational_preference(out: Outputs, batch: Batch, *, latent: Count = 8, kl: NotNegative = 0.01) -> Terms:
    """Negative evidence lower bound of a user's labels, one term per group, (U,): the mean over the target
    pairs of -E log sigmoid(r(chosen, z) - r(rejected, z)) + `kl` x KL(q || N(0, 1)), with q(z | context) the
    `posterior` (Poddar et al., section 4). A group has all pairs of a user, chosen first (`by_user`);
    `context` over 1/2 in the chosen row marks the pairs that q is inferred from, the others are targets.

    r(s, z) = b(s) + f(s) . z, with z of `latent` dimensions. The backbone is the only model: b, f, g and h
    are coordinates of its last hidden state, averaged over the answer, in place of the paper's networks on
    top of it. As the reward is linear in z, the expectation over z is an integral over one number, which
    quadrature gives without sampling.

    A target with b 0.4 and 0.1, f 1 and 1 (it cancels), and no context: -log sigmoid(0.3), no divergence.

    >>> import dataclasses
    >>> pair = dataclasses.replace(batch, mask=torch.ones(2, 1).bool(), group=torch.zeros(2).long(),
    ...     unit=torch.zeros(2).long(), columns={"context": torch.zeros(2)})
    >>> same = torch.ones(2, 1)
    >>> variational_preference(Outputs({"shared": torch.tensor([0.4, 0.1]), "taste": same, "evidence": same,
    ...     "spread": same}), pair).loss
    tensor([0.5544])
    """
    marked = batch["context"] if batch["context"].dim() == 1 else batch.row_mean(batch["context"])
    live = batch.mask.any(-1)
    there = live[0::2] & live[1::2]
    context = (marked[0::2] > 0.5) & there
    target = (marked[0::2] <= 0.5) & there
    unit = batch.unit[0::2].to(out.shared.device)
    groups = int(unit.max()) + 1 if len(unit) else 0
    told = out.evidence[0::2] - out.evidence[1::2]
    variance = (out.spread[0::2] + out.spread[1::2]) / 2
    mean, log_variance = posterior(told[context], variance[context], unit[context], groups)
    differs, unit = (out.taste[0::2] - out.taste[1::2])[target], unit[target]
    margin = (out.shared[0::2] - out.shared[1::2])[target] + (differs * mean[unit]).sum(-1)
    losses = -expected_logsigmoid(margin, (differs**2 * log_variance.exp()[unit]).sum(-1))
    number = losses.new_zeros(groups).index_add(0, unit, torch.ones_like(losses)).clamp(min=1)
    right = (margin > 0).to(losses.dtype) + 0.5 * (margin == 0).to(losses.dtype)
    likelihood, accuracy = (losses.new_zeros(groups).index_add(0, unit, x) / number for x in (losses, right))
    divergence = (mean**2 + log_variance.exp() - 1 - log_variance).sum(-1) / 2
    return Terms(
        likelihood + kl * divergence,
        {"likelihood": likelihood.detach(), "kl": divergence.detach(), "accuracy": accuracy.detach()},
    )
