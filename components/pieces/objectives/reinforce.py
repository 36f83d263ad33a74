"""REINFORCE objective (score-function estimator)."""

from __future__ import annotations

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.clip import step_advantages
from ratchet.components.types import Batch, Outputs, Terms


@piece(reads=("advantages",), outputs=("logprobs",), unit="step", paper="arXiv:2402.14740")
def reinforce(out: Outputs, batch: Batch) -> Terms:
    """-A log pi, one term per step (Williams 1992). With `row_sum` it is the sequence-level REINFORCE of RLOO
    (arXiv 2402.14740, eq. 5). Valid only while pi is the policy that sampled the answers.
    """
    return Terms(-step_advantages(batch) * out.logprobs)
