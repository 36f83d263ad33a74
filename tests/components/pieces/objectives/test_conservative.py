"""Conservative term: what it pushes, down to where, and what it leaves alone."""

from __future__ import annotations

import pytest
import torch

from ratchet.components.piece import build
from ratchet.components.types import Batch, Outputs

RETURNS = [0.4, 0.4, 0.9, 0.9]
"""Of two pairs: the turn of the data, and an action of the policy in its state."""


def terms(values: torch.Tensor, **options: bool):
    mask = torch.ones(4, 1, dtype=torch.bool)
    rows = torch.arange(4)
    batch = Batch({}, mask, {"transition.return": torch.tensor(RETURNS)}, rows // 2, rows // 2, tuple("ppqq"))
    return build("objective", {"name": "conservative", **options})(Outputs({"action_values": values}), batch)


def values(*shift: float) -> torch.Tensor:
    rows = torch.tensor([[0.2, 0.1], [0.7, 0.3], [0.5, 0.5], [0.8, 1.0]])
    return (rows + torch.tensor(shift or (0.0, 0.0))).requires_grad_()


def test_numbers_by_hand() -> None:
    """Pair p: 0.7 - 0.2 and max(0.3, 0.4) - 0.1; pair q: max(0.8, 0.9) - 0.5 and 1.0 - 0.5."""
    found = terms(values())
    assert found.loss.tolist() == pytest.approx([0.5 + 0.3, 0.4 + 0.5])
    assert found.metrics["gap"].tolist() == pytest.approx([(0.5 + 0.2) / 2, (0.3 + 0.5) / 2])
    assert found.metrics["floored"].tolist() == [0.5, 0.5]
    assert terms(values(), calibrated=False).loss.tolist() == pytest.approx([0.5 + 0.2, 0.3 + 0.5])


def test_actions_of_the_policy_are_pushed_down_only_above_the_return_of_the_data() -> None:
    """Those of the data are pushed up everywhere."""
    given = values()
    terms(given).loss.sum().backward()
    assert given.grad is not None
    assert given.grad.tolist() == [[-1.0, -1.0], [1.0, 0.0], [-1.0, -1.0], [0.0, 1.0]]


def test_without_calibration_only_differences_of_actions_matter() -> None:
    plain = terms(values(), calibrated=False).loss
    assert terms(values(3.0, -2.0), calibrated=False).loss.tolist() == pytest.approx(plain.tolist())
    assert terms(values(-5.0, -5.0)).loss.tolist() != pytest.approx(terms(values()).loss.tolist())


def test_calibration_changes_nothing_where_the_policy_is_worth_more_than_the_data() -> None:
    high = (9.0, 9.0)
    assert terms(values(*high)).loss.tolist() == pytest.approx(
        terms(values(*high), calibrated=False).loss.tolist()
    )
