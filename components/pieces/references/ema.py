"""Reference update `ema`: exponential moving average of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import BelowOne

if TYPE_CHECKING:
    from torch import Tensor


@piece(paper="arXiv:2404.09656")
def ema(
    reference: Mapping[str, Tensor], policy: Mapping[str, Tensor], *, decay: BelowOne = 0.4
) -> Mapping[str, Tensor]:
    """decay x reference + (1 - decay) x policy, per weight: the soft update of Trust Region DPO (its alpha is
    1 - decay).
    """
    if reference.keys() != policy.keys():
        raise ContractError(
            "ema: reference and policy differ in weights, e.g. "
            f"{sorted(reference.keys() ^ policy.keys())[:3]}"
        )
    return {
        name: reference[name].lerp(weight.to(reference[name].dtype), 1 - decay)
        if weight.is_floating_point()
        else weight
        for name, weight in policy.items()
    }
