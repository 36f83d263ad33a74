"""DPO at every step: limits, the clip's gradient, and pairs of unequal length."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ratchet.components.piece import build
from ratchet.components.types import Batch, Outputs, Terms


def batch_of(reference: list[list[float]], turn: list[list[float]], margin: float = 0.3) -> Batch:
    """Rows in pairs; the loss mask is where `turn` is not 0."""
    turns = torch.tensor(turn, dtype=torch.float64)
    columns = {"logprobs.reference": torch.tensor(reference, dtype=torch.float64), "turn": turns}
    columns["margin"] = torch.full((len(turn),), margin)
    rows = torch.arange(len(turn))
    return Batch({}, turns > 0, columns, rows, rows, tuple(map(str, range(len(turn)))))


def loss_of(logprobs: torch.Tensor, batch: Batch, name: str = "d3po", **options: Any) -> Terms:
    return build("objective", {"name": name, **options})(Outputs({"logprobs": logprobs}), batch)


def gradient(ratios: list[list[float]], turn: list[list[float]], **options: Any) -> list[list[float]]:
    """Of the mean term, at these log-ratios to a reference of -1."""
    batch = batch_of([[-1.0] * len(turn[0])] * len(turn), turn)
    logprobs = (torch.tensor(ratios, dtype=torch.float64) - 1).requires_grad_()
    loss_of(logprobs, batch, **options).loss.mean().backward()
    assert logprobs.grad is not None
    return logprobs.grad.tolist()


def test_at_the_reference_each_step_has_half_of_beta_over_steps_and_tokens() -> None:
    """-log sigmoid has the slope -1/2 at 0: two steps of two tokens and of one, beta 0.4."""
    found = gradient([[0.0] * 3] * 2, [[1, 1, 2]] * 2, beta=0.4)
    assert found[0] == pytest.approx([-0.05, -0.05, -0.1]) and found[1] == pytest.approx([0.05, 0.05, 0.1])
    summed = gradient([[0.0] * 3] * 2, [[1, 1, 2]] * 2, beta=0.4, average=False)
    assert summed[0] == pytest.approx([-0.1] * 3) and summed[1] == pytest.approx([0.1] * 3)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_outside_of_the_clip_neither_side_has_a_gradient_whichever_is_better(sign: float) -> None:
    """A pessimistic clip would keep the gradient of a chosen step that has become less likely."""
    found = gradient([[sign * 0.3, 0.0], [sign * -0.3, 0.0]], [[1, 2]] * 2)
    assert found[0][0] == found[1][0] == 0.0
    assert found[0][1] < 0 < found[1][1]


def test_one_step_of_summed_tokens_within_the_clip_is_dpo() -> None:
    reference = [[-1.0, -2.0], [-3.0, -1.0]]
    batch = batch_of(reference, [[1, 1], [1, 1]])
    logprobs = torch.tensor([[-0.9, -2.2], [-2.9, -1.3]], dtype=torch.float64)
    mine = loss_of(logprobs, batch, beta=0.7, epsilon=0.5, average=False)
    torch.testing.assert_close(mine.loss, loss_of(logprobs, batch, "preference.dpo", beta=0.7).loss)
    assert mine.metrics["clipped"].tolist() == [0.0]


def test_a_step_of_one_chain_alone_does_not_count() -> None:
    """The second chain was cut after its first turn: the loss is that of the first turns."""
    turn = [[1.0, 0.0, 2.0], [1.0, 0.0, 0.0]]
    batch = batch_of([[-1.0] * 3] * 2, turn)
    logprobs = torch.tensor([[-0.95, -9.0, -0.9], [-1.0, -9.0, -9.0]], dtype=torch.float64)
    found = loss_of(logprobs, batch, beta=1.0)
    assert found.loss.item() == pytest.approx(math.log1p(math.exp(-0.05)))
    assert gradient([[0.05, 0.0, 0.1], [0.0] * 3], turn)[0][2] == 0.0


def test_swapping_the_images_mirrors_the_margin() -> None:
    turn = [[1.0, 2.0]] * 2
    ratios = torch.tensor([[0.02, -0.5], [0.05, 0.01]], dtype=torch.float64) - 1
    batch = batch_of([[-1.0] * 2] * 2, turn)
    one, other = loss_of(ratios, batch), loss_of(ratios.flip(0), batch)
    torch.testing.assert_close(one.metrics["margin"], -other.metrics["margin"])
    torch.testing.assert_close(one.metrics["clipped"], other.metrics["clipped"])


def test_a_tie_has_a_constant_loss_and_no_gradient() -> None:
    ratios = torch.tensor([[-0.9, -1.2], [-1.1, -1.0]], requires_grad=True)
    found = loss_of(ratios, batch_of([[-1.0] * 2] * 2, [[1.0, 2.0]] * 2, margin=0.0))
    found.loss.sum().backward()
    assert found.loss.item() == pytest.approx(math.log(2)) and found.metrics["tied"].tolist() == [1.0]
    assert ratios.grad is not None and ratios.grad.abs().sum() == 0
