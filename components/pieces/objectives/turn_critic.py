"""Turn critic: two action values and two state values of turns, regressed on targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.types import Batch, Outputs, Terms

if TYPE_CHECKING:
    from ratchet.components.models.reading import Reading

TARGETS = ("target.q_1", "target.q_2", "target.v_1", "target.v_2")
"""Columns of the targets, one number a row, in the order of the heads."""


def action_values(reading: Reading) -> Tensor:
    """Q_1 and Q_2 of the state and the turn together, (B,2). They read the products, element by element, of
    the state's hidden state with the mean over those of the turn's tokens, the end-of-turn token included:
    the paper's joint head on both, with a product in the place of hidden layers.
    """
    states = _hidden(reading, _before(reading))
    means = []
    for index, mask in zip(reading.plan.index, reading.batch.mask, strict=True):
        places = index[mask[: len(index)]].to(reading.hidden.device)
        means.append(reading.hidden[places].float().sum(0) / max(1, len(places)))
    return _heads(reading, states * torch.stack(means))[:, :2]


def state_values(reading: Reading) -> Tensor:
    """V_1 and V_2 of the state, (B,2): read at the last token before the turn."""
    return _heads(reading, _hidden(reading, _before(reading)))[:, 2:]


def next_values(reading: Reading) -> Tensor:
    """V_1 and V_2 of the state that follows, (B,2): read at the last token of the row, where the policy's
    next turn would begin. Without a meaning for a row that ends with its turn.
    """
    return _heads(reading, _hidden(reading, [index[-1] for index in reading.plan.index]))[:, 2:]


def _before(reading: Reading) -> list[Tensor]:
    """Position in the flat row of the token before each row's turn, which is its loss mask; of the row's
    first token for a row without any.
    """
    steps = [mask.nonzero()[:, 0] for mask in reading.batch.mask]
    return [
        index[int(own[0]) - 1 if len(own) else 0]
        for index, own in zip(reading.plan.index, steps, strict=True)
    ]


def _hidden(reading: Reading, places: Sequence[Tensor]) -> Tensor:
    """Last hidden states (B,H) at these positions, in float32."""
    return reading.hidden[torch.stack(list(places)).to(reading.hidden.device)].float()


def _heads(reading: Reading, inputs: Tensor) -> Tensor:
    """(B,4): Q_1, Q_2, V_1, V_2 of inputs (B,H). Each head is linear in its own quarter of the input; all are
    one value head, which starts at 0 and is saved with the model.
    """
    head = getattr(reading.model, "value_head", None)
    if head is None:
        raise ContractError("turn_critic: the model has no value head; set `value_head: true` in its role")
    width = inputs.shape[1] // 4
    products = inputs[:, : 4 * width] * head.weight[0, : 4 * width].float()
    return products.view(-1, 4, width).sum(-1) + head.bias.float()


@piece(
    reads=("target.q_1", "target.q_2", "target.v_1", "target.v_2"),
    readers={"action_values": "vector", "state_values": "vector"},
    unit="row",
    paper="arXiv:2402.19446",
    value_head=True,
)
def turn_critic(out: Outputs, batch: Batch) -> Terms:
    """sum over i of (Q_i(s, a) - target)^2 + (V_i(s) - target)^2, the squared errors of both heads, one term
    per row (Zhou et al., equations 1 and 2, with two of each). The row's loss mask is the turn.
    """
    targets = torch.stack([by_row(batch, batch[name]) for name in TARGETS], -1)
    values = torch.cat([out.action_values[:, :2], out.state_values[:, :2]], -1)
    error = (values - targets.to(values.device)) ** 2
    q, v = values.detach()[:, :2], values.detach()[:, 2:]
    return Terms(
        error.sum(-1),
        {
            "q": q.mean(-1),
            "v": v.mean(-1),
            "q_error": error.detach()[:, :2].mean(-1),
            "v_error": error.detach()[:, 2:].mean(-1),
        },
    )


def by_row(batch: Batch, column: Tensor) -> Tensor:
    """A column as one number a row: the mean over the turn of one with a number a step."""
    return column if column.dim() == 1 else batch.row_mean(column)
