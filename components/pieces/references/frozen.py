"""Reference update `frozen`: the reference stays fixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ratchet.components.piece import piece

if TYPE_CHECKING:
    from torch import Tensor


@piece(paper="arXiv:2405.07863")
def frozen(reference: Mapping[str, Tensor], policy: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The unchanged reference weights. If the initial reference is the SFT policy, the KL is relative to it."""
    return reference
