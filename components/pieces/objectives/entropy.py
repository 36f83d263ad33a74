"""The entropy bonus."""

from __future__ import annotations

from ratchet.components.piece import piece
from ratchet.components.types import Batch, Outputs, Terms


@piece(asks=("entropy",), unit="step", paper="arXiv:1707.06347")
def entropy(out: Outputs, batch: Batch) -> Terms:
    """Minus the entropy of the policy at each step, in nats (PPO eq. 9, the S term): a positive weight explores more."""
    return Terms(-out.entropy, {"entropy": out.entropy.detach()})
