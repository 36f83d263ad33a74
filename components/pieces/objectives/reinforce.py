"""The score-function estimator."""

from __future__ import annotations

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.clip import step_advantages
from ratchet.components.types import Batch, Outputs, Terms


@piece(reads=("advantages",), asks=("logprobs",), unit="step", paper="arXiv:2402.14740")
def reinforce(out: Outputs, batch: Batch) -> Terms:
    """-A log pi, a term a step (Williams 1992). With `row_sum` it is the sequence-level REINFORCE that RLOO uses
    (arXiv 2402.14740, eq. 5): a row's log-prob is the sum of its steps'. Right only while pi is the sampling policy.
    """
    return Terms(-step_advantages(batch) * out.logprobs)
