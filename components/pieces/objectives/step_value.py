"""Value of a partial solution: a value model without a head of its own, regressed on targets at step ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ratchet.components.models.layers import output_layer
from ratchet.components.piece import piece
from ratchet.components.types import Batch, Outputs, Terms

if TYPE_CHECKING:
    from ratchet.components.models.reading import Reading


def step_values(reading: Reading) -> Tensor:
    """V (B,T) of the prompt and the answer up to and including token t, from 0 to 1: the sigmoid of a linear
    map of the last hidden state at token t. The map is the difference of the last two rows of the output
    layer, which belong to reserved or rare tokens in most vocabularies, so that a value model is a language
    model like any other. 0 beyond a row's end.
    """
    head = output_layer(reading.language)
    logits = reading.hidden.float() @ (head.weight[-1] - head.weight[-2])
    if head.bias is not None:
        logits = logits + head.bias[-1] - head.bias[-2]
    values = torch.sigmoid(logits)
    rows = [
        torch.nn.functional.pad(
            values[index.to(values.device)], (0, reading.batch.mask.shape[1] - len(index))
        )
        for index in reading.plan.index
    ]
    return torch.stack(rows)


@piece(reads=("target.value",), readers={"step_values": "step"}, unit="step", paper="arXiv:2406.03816")
def step_value(out: Outputs, batch: Batch) -> Terms:
    """(V(s) - target)^2, the squared error of the value of a partial solution s against `target.value`, one
    term per step (section 3.3 of the paper). `where: target.known` restricts it to the ends of reasoning
    steps that have a target. The metric `value` is the predicted value.
    """
    error = (out.step_values - batch["target.value"]) ** 2
    return Terms(error, {"value": out.step_values.detach()})
