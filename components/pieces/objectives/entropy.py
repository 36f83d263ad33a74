"""Entropy bonus objective."""

from __future__ import annotations

from ratchet.components.piece import piece
from ratchet.components.types import Batch, Outputs, Terms


@piece(outputs=("entropy",), unit="step", paper="arXiv:1707.06347")
def entropy(out: Outputs, batch: Batch) -> Terms:
    """Negative policy entropy at each step, in nats (term S of PPO eq. 9): a positive weight encourages
    exploration.
    """
    return Terms(-out.entropy, {"entropy": out.entropy.detach()})
