"""What the reference becomes after a round."""

import pytest
import torch

from components.errors import ContractError
from components.piece import build

OLD, NEW = {"w": torch.tensor([0.0, 2.0])}, {"w": torch.tensor([1.0, 4.0])}


@pytest.mark.parametrize(("spec", "expected"), [({"name": "frozen"}, [0.0, 2.0]), ({"name": "every_round"}, [1.0, 4.0]),
                                                ({"name": "ema", "follow": 0.25}, [0.25, 2.5])])
def test_anchor(spec, expected):
    assert build("anchor", spec)(OLD, NEW)["w"].tolist() == expected


def test_ema_of_different_models():
    with pytest.raises(ContractError, match="'x'"):
        build("anchor", {"name": "ema"})(OLD, {"w": NEW["w"], "x": NEW["w"]})
