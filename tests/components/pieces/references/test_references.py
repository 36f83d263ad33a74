"""Reference model updates between rounds."""

import pytest
import torch

from ratchet.components.errors import ContractError
from ratchet.components.piece import build

OLD, NEW = {"w": torch.tensor([0.0, 2.0])}, {"w": torch.tensor([1.0, 4.0])}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [({"name": "every_round"}, [1.0, 4.0]), ({"name": "ema", "decay": 0.75}, [0.25, 2.5])],
)
def test_reference_update(spec, expected):
    assert build("reference", spec)(OLD, NEW)["w"].tolist() == expected


def test_ema_of_different_models():
    with pytest.raises(ContractError, match="'x'"):
        build("reference", {"name": "ema"})(OLD, {"w": NEW["w"], "x": NEW["w"]})


def test_ema_of_a_policy_in_half_precision_loses_no_small_step():
    """The policy may be bfloat16 on a GPU, whose spacing near 1 is 0.008; the EMA is accumulated in
    float32.
    """
    moved = build("reference", {"name": "ema", "decay": 0.99})(
        {"w": torch.tensor([1.0])}, {"w": torch.tensor([1.125], dtype=torch.bfloat16)}
    )["w"]
    assert moved.dtype == torch.float32 and moved.tolist() == pytest.approx([1.00125])
