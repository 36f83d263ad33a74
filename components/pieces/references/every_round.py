"""Reference update `every_round`: the reference becomes the current policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ratchet.components.piece import piece

if TYPE_CHECKING:
    from torch import Tensor


@piece(paper="arXiv:2401.01335")
def every_round(reference: Mapping[str, Tensor], policy: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The policy's weights, as in SPIN (algorithm 1), the RLHF Workflow script and, every so many steps, the
    hard update of Trust Region DPO (arXiv 2404.09656).
    """
    return policy
