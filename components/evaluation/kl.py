"""Monte Carlo KL(policy ‖ reference) from answers sampled by the policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import checked

Rows = Sequence[Sequence[float]]


def sequence_kl(
    sampled: Sequence[Sequence[float] | None], reference: Rows, masks: Sequence[Sequence[bool]] | None = None
) -> float:
    """KL in nats per sequence: mean over answers of Σ_t (log π − log π_ref), unbiased (estimator k1 of
    Schulman, 2020).

    Rows (T_b,) are log-probs at temperature 1 of the same sampled tokens under both models. For answers
    sampled at a lower temperature it is the mean log-ratio of those answers, not the KL.
    """
    return float(checked([float(row.sum()) for row in _gaps(sampled, reference, masks)]).mean())  # pyright: ignore[reportArgumentType]


def _gaps(sampled: Rows, reference: Rows, masks: Sequence[Sequence[bool]] | None) -> list[np.ndarray]:
    if len(sampled) != len(reference):
        raise DataError(
            f"KL needs the same answers under both models, got {len(sampled)} and {len(reference)}"
        )
    rows = []
    for i, (p, q) in enumerate(zip(sampled, reference, strict=True)):
        if len(p) != len(q):
            raise DataError(
                f"KL: answer {i} has {len(p)} tokens under the policy and {len(q)} under the reference"
            )
        gap = np.asarray(p, float) - np.asarray(q, float)
        rows.append(gap if masks is None else gap[np.asarray(masks[i], bool)])
    return rows
