"""The reference stays what it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ratchet.components.piece import piece

if TYPE_CHECKING:
    from torch import Tensor


@piece(paper="arXiv:2405.07863")
def frozen(reference: Mapping[str, Tensor], policy: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The weights of the reference after a round: the old ones. With the SFT policy as the first, the KL is to it."""
    return reference
