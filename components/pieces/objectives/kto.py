"""Kahneman-Tversky optimisation (KTO): loss on single answers labelled desirable or undesirable. One term per
row, (B,).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Batch, Outputs, Terms


def reference_point(out: Outputs, batch: Batch) -> Tensor:
    """log pi/ref of each answer, (B,). Its mean over answers to other prompts estimates KL(pi || ref)."""
    return batch.row_sum(torch.where(batch.mask, out.logprobs - batch["logprobs.reference"], 0.0))


@piece(
    reads=("logprobs.reference", "label", "trained"),
    outputs=("logprobs",),
    means=("reference_point",),
    unit="row",
    paper="arXiv:2402.01306",
)
def kto(
    out: Outputs,
    batch: Batch,
    *,
    beta: Positive = 0.1,
    desirable: Positive = 1.0,
    undesirable: Positive = 1.0,
) -> Terms:
    """KTO (eq. 8): `desirable` (1 - sigmoid(beta (r - z0))) for label 1, `undesirable` (1 - sigmoid(beta (z0
    - r))) for label 0, with r = log pi/ref of the answer. z0 = max(0, mean of r over mismatched answers) has
      no
    gradient; the selector `mismatched` adds these. With n answers of each label the paper recommends
    desirable n_desirable / (undesirable n_undesirable) between 1 and 4/3.

    Metrics: `kl` is z0; `accuracy` is 1 if the answer is on the right side of it (ties 1/2); `rewards/...` is
    beta r by label.
    """
    ratio, point, liked = (
        reference_point(out, batch),
        batch["reference_point"].clamp(min=0),
        batch["label"] > 0.5,
    )
    margin = torch.where(liked, ratio - point, point - ratio)
    reward = beta * ratio.detach()
    return Terms(
        torch.where(liked, desirable, undesirable) * torch.sigmoid(-beta * margin),
        {
            "kl": point,
            "accuracy": (margin.detach().sign() + 1) / 2,
            "rewards/desirable": reward[liked],
            "rewards/undesirable": reward[~liked],
        },
    )
