"""Perplexity of the policy on the data's replies, before and after training: what training for a reward costs
in likelihood (an alignment tax).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import Interval, counts, percentiles

Rows = Sequence[Sequence[float]]


def perplexity(logprobs: Rows, masks: Sequence[Sequence[bool]] | None = None) -> float:
    """exp(−mean log-prob per token in the loss mask), over all rows together. Rows (T_b,) in nats."""
    total, tokens = _sums(logprobs, masks)
    return float(np.exp(-total.sum() / tokens.sum()))


def perplexity_ratio(
    policy: Rows,
    reference: Rows,
    masks: Sequence[Sequence[bool]] | None = None,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Perplexity of the policy over that of the reference on the same replies; above 1, training has cost
    likelihood.

    The interval resamples replies, paired for both models. The logarithm of the ratio is the cost in nats per
    token.
    """
    ours, tokens = _sums(policy, masks)
    theirs, same = _sums(reference, masks)
    if len(ours) != len(theirs) or (tokens != same).any():
        raise DataError(
            "perplexities can only be compared on the same tokens; the two models' rows differ in number "
            "or length"
        )
    drawn = counts(len(ours), resamples, seed)
    ratios = np.exp((drawn @ (theirs - ours)) / (drawn @ tokens))
    low, high = percentiles(ratios, len(ours), level=level)
    return Interval(
        mean=float(np.exp((theirs - ours).sum() / tokens.sum())),
        low=low,
        high=high,
        n=len(ours),
    )


def _sums(logprobs: Rows, masks: Sequence[Sequence[bool]] | None) -> tuple[np.ndarray, np.ndarray]:
    """Per row: sum of the masked-in log-probs and their number. `DataError` for a row without any."""
    if not len(logprobs):
        raise DataError("perplexity needs at least one reply, got none")
    kept = [
        np.asarray(row, float) if masks is None else np.asarray(row, float)[np.asarray(masks[i], bool)]
        for i, row in enumerate(logprobs)
    ]
    empty = [i for i, row in enumerate(kept) if not len(row)]
    if empty:
        raise DataError(f"reply {empty[0]} has an empty loss mask")
    return np.array([row.sum() for row in kept]), np.array([len(row) for row in kept])
