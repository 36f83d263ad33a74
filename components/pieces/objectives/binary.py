"""Binary cross-entropy of a classifier that scores single answers."""

from __future__ import annotations

from torch.nn.functional import logsigmoid

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.preference import accuracy
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Batch, Outputs, Terms


@piece(outputs=("scores",), unit="pair", paper="arXiv:2505.14946")
def binary(out: Outputs, batch: Batch, *, positive: Positive = 1.0) -> Terms:
    """`positive` x -log sigmoid(s+) - log sigmoid(-s-), one term per pair, (U,): the cross-entropy of two
    labelled answers, the first with the signal, the second without. Unlike Bradley-Terry, scores are not
    compared, so that sigmoid(s) is a probability in the (balanced) data. RLUF trains P[Love] by it.

    Scores 2 and 1: 0.126928 + 1.313262 = 1.440190. `accuracy` is the share of the two answers on the right
    side of 0, ties 1/2.
    """
    first, second = batch.pair(out.scores)
    right = (accuracy(first.detach()) + accuracy(-second.detach())) / 2
    return Terms(
        -positive * logsigmoid(first) - logsigmoid(-second),
        {"accuracy": right, "margin": (first - second).detach()},
    )
