"""Maximum likelihood objective: supervised fine-tuning, and RAFT on its best answers (arXiv 2304.06767)."""

from __future__ import annotations

from ratchet.components.piece import piece
from ratchet.components.types import Batch, Outputs, Terms


@piece(outputs=("logprobs",), unit="step", paper="arXiv:2203.02155")
def likelihood(out: Outputs, batch: Batch) -> Terms:
    """-log p(token | tokens before it), the negative log-likelihood, (B,T) in nats, under the loss mask; the
    SFT stage of InstructGPT (section 3.5).
    """
    return Terms(-out.logprobs)
