"""Reward-model losses on pairs (chosen first), from one score per row. One term per pair, (U,).

`accuracy` counts ties as 1/2 (our convention). Lengths are numbers of masked-in tokens, compared as
log(length chosen / length rejected).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.preference import terms
from ratchet.components.recipes.ranges import Finite, NotNegative
from ratchet.components.types import Batch, Outputs, Terms


def length_difference(batch: Batch) -> Tensor:
    """log(length chosen / length rejected), (U,)."""
    chosen, rejected = batch.pair(batch.mask.sum(-1).clamp(min=1).log())
    return chosen - rejected


@piece(outputs=("scores",), unit="pair", paper="arXiv:2203.02155")
def bradley_terry(out: Outputs, batch: Batch) -> Terms:
    """Bradley-Terry: -log sigmoid(score chosen - score rejected) (InstructGPT eq. 1)."""
    chosen, rejected = batch.pair(out.scores)
    return terms(-logsigmoid(chosen - rejected), chosen, rejected)


@piece(reads=("margin",), outputs=("scores",), unit="pair", paper="arXiv:2307.09288")
def margin(out: Outputs, batch: Batch, *, scale: NotNegative = 1.0) -> Terms:
    """Bradley-Terry with a margin (Llama 2 eq. 2): the score difference must exceed `scale` times the pair's
    column `margin`, read from the chosen row.
    """
    chosen, rejected = batch.pair(out.scores)
    wanted, _ = batch.pair(batch["margin"])
    return terms(-logsigmoid(chosen - rejected - scale * wanted), chosen, rejected)


@piece(outputs=("scores",), unit="pair", paper="arXiv:2312.09244")
def centre(out: Outputs, batch: Batch) -> Terms:
    """(score chosen + score rejected)^2: fixes the offset that Bradley-Terry leaves undetermined (section 2).
    Recommended weight: 0.01.
    """
    chosen, rejected = batch.pair(out.scores)
    return Terms((chosen + rejected) ** 2)


@piece(outputs=("scores",), unit="pair", paper="arXiv:2310.05199")
def length_controlled(out: Outputs, batch: Batch, *, slope: Finite = 1.0) -> Terms:
    """Bradley-Terry as a product of experts with a length-only expert (arXiv 1909.03683, with length as the
    bias): the logit is the score difference + slope x log length ratio. The score need not explain what
    length explains; the expert is dropped at inference. `slope`: coefficient of a logistic regression of the
    label on that log ratio.
    """
    chosen, rejected = batch.pair(out.scores)
    return terms(-logsigmoid(chosen - rejected + slope * length_difference(batch)), chosen, rejected)
