"""Bradley-Terry with soft labels and a margin of its own for every pair."""

from __future__ import annotations

from torch.nn.functional import logsigmoid

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.preference import terms
from ratchet.components.recipes.ranges import BelowHalf, NotNegative
from ratchet.components.types import Batch, Outputs, Terms


@piece(reads=("margin",), outputs=("scores",), unit="pair", paper="arXiv:2401.06080")
def soft_ranking(
    out: Outputs, batch: Batch, *, label_smoothing: BelowHalf = 0.1, scale: NotNegative = 1.0
) -> Terms:
    """-(1 - e) log sigmoid(z) - e log sigmoid(-z), one term per pair, (U,), with z = score chosen - score
    rejected - scale x `margin` (Secrets of RLHF II, section 2.3: label smoothing and adaptive margin). The
    margin is the strength of the preference, read from the chosen row; the authors advise small ones.

    e = 0 and scale = 0 is Bradley-Terry. Scores 2 and 1 with margin 1/2 and e = 0.1: 0.9 x 0.474077 + 0.1 x
    0.974077 = 0.524077.
    """
    chosen, rejected = batch.pair(out.scores)
    wanted, _ = batch.pair(batch["margin"])
    z = chosen - rejected - scale * wanted
    loss = -(1 - label_smoothing) * logsigmoid(z) - label_smoothing * logsigmoid(-z)
    return terms(loss, chosen, rejected)
