"""Direct preference optimisation at every denoising step of a pair of images."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.preference import terms
from ratchet.components.recipes.ranges import Bool, OpenShare, Positive
from ratchet.components.types import Batch, Outputs, Terms


def by_turn(batch: Batch, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over each turn's tokens, and their number, both (B,J) for the J turns of the longest row: of
    values (B,T) by the column `turn`, which is 1 to J on the policy's tokens. A turn that a row does not have
    has 0 tokens.
    """
    number = torch.where(batch.mask, batch["turn"].round(), 0).long()
    wide = (len(number), int(number.max()) + 1)
    sums = steps.new_zeros(wide).scatter_add(1, number, steps)
    counts = steps.new_zeros(wide).scatter_add(1, number, torch.ones_like(steps))
    return sums[:, 1:], counts[:, 1:]


@piece(
    reads=("logprobs.reference", "turn", "margin"),
    outputs=("logprobs",),
    unit="pair",
    paper="arXiv:2311.13231",
)
def d3po(
    out: Outputs, batch: Batch, *, beta: Positive = 0.1, epsilon: OpenShare = 0.1, average: Bool = True
) -> Terms:
    """The preference for one image of a pair is given to each of its steps (algorithm 1 and the released
    code): the loss of step j is -log sigmoid(beta h (log rho_j - log rho'_j)), with rho_j the ratio pi/ref of
    the first chain's step clipped to [1 - epsilon, 1 + epsilon], rho'_j that of the second one, and h the
    sign of the pair's `margin`: 0 for a tie, which has the loss log 2 and no gradient. One term per pair,
    (U,): the mean over the steps that both have; 0 if they have none in common.

    A step is a turn, by the column `turn` of the rollout `episodes`. Its log-ratio is the mean over its
    tokens (`average`, as the released code's is over pixels), else the sum. Outside of the clip there is no
    gradient, whichever side of the pair is better: it is no pessimistic clip as PPO's. The end of a turn is
    a token of it.

    At policy = reference every term is log 2. Metrics (U,): those of `preference.dpo` with means over steps
    in the place of sums over an answer; `clipped`, the share of the pair's log-ratios that the clip holds;
    and `tied`, 1 for a tie.
    """
    ratios = torch.where(batch.mask, out.logprobs - batch["logprobs.reference"], 0.0)
    sums, counts = by_turn(batch, ratios)
    free = sums / counts.clamp(min=1) if average else sums
    low, high = math.log1p(-epsilon), math.log1p(epsilon)
    sign = batch.pair(batch["margin"])[0].sign().to(free.dtype)
    both = torch.minimum(*batch.pair(counts)) > 0
    number = both.sum(-1).clamp(min=1)

    def mean(values: Tensor) -> Tensor:
        return torch.where(both, values, 0.0).sum(-1) / number

    chosen, rejected = batch.pair(free.clamp(low, high))
    held = sum(((one < low) | (one > high)).to(free.dtype) for one in batch.pair(free.detach())) / 2
    found = terms(
        mean(-logsigmoid(beta * sign[:, None] * (chosen - rejected))),
        beta * mean(chosen),
        beta * mean(rejected),
    )
    more = {"clipped": mean(torch.as_tensor(held)), "tied": (sign == 0).to(free.dtype)}
    return Terms(found.loss, {**found.metrics, **more})
