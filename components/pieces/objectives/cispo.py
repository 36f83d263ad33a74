"""CISPO objective: clips the importance weight instead of the gradient."""

from __future__ import annotations

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.clip import log_ratio, step_advantages
from ratchet.components.recipes.ranges import NotNegative
from ratchet.components.types import Batch, Outputs, Terms


@piece(reads=("logprobs.{old}", "advantages"), outputs=("logprobs",), unit="step", paper="arXiv:2506.13585")
def cispo(
    out: Outputs, batch: Batch, *, low: NotNegative = 1.0, high: NotNegative = 0.2, old: str = "old"
) -> Terms:
    """-sg(clip(ratio, 1 - low, 1 + high)) A log pi (MiniMax-M1, eq. 4-5), one term per step.

    The paper has no lower bound: `low` = 1 makes it 0. It tunes `high` without stating a value; the default
    0.2 is ours.
    """
    ratio = log_ratio(out, batch, old).exp().detach()
    weight = ratio.clamp(1 - low, 1 + high)
    return Terms(
        -weight * step_advantages(batch) * out.logprobs,
        {"clipped": (weight != ratio).to(ratio.dtype), "ratio": ratio},
    )
