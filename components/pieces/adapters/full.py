"""Adapter `full`: all parameters are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.components.piece import piece

if TYPE_CHECKING:
    from torch.nn import Module


@piece()
def full(model: Module) -> Module:
    """The model with all parameters trainable."""
    model.requires_grad_(True)
    return model
