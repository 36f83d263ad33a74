"""A reward model on sampled answers whose true values are known: best of n (the true rate of the answer that
it scores highest among n), and how often it is right on two answers to one prompt. Bootstrap intervals over
prompts.

Accuracy on pairs from the training distribution does not show that a reward model can be optimised against
(Gao et al., 2022, arXiv:2210.10760). A true rate that rises with n does, at least for the sampled policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import Interval, difference, mean_interval

SIZES = (1, 2, 4, 8)


def best_of_n(scores: Sequence[Sequence[float | None]], truths: Sequence[Sequence[float]]) -> dict[str, Any]:
    """{"1": interval, "2": interval, ..., "rises": interval of the paired difference between the largest n
    and n = 1}.

    One row per prompt: reward-model scores of its answers (None ranks lowest) and their true values. Prompts
    with fewer answers than the others are left out. `DataError` for fewer than two answers per prompt.
    """
    most = max(map(len, truths), default=0)
    if most < 2:
        raise DataError(
            f"best of n: expected at least 2 answers per prompt, got {most}; raise "
            "demonstrate.rollout.responses_per_prompt"
        )
    whole = [(s, t) for s, t in zip(scores, truths, strict=True) if len(t) == most]
    sizes = [n for n in SIZES if n <= most]
    values = {n: [expected_best(s, t, n) for s, t in whole] for n in sizes}
    return {
        **{str(n): mean_interval(row) for n, row in values.items()},
        "rises": difference(values[sizes[-1]], values[1]),
    }


def accuracy_within_prompts(
    scores: Sequence[Sequence[float | None]], truths: Sequence[Sequence[float]]
) -> Interval | None:
    """Share of pairs of two answers to one prompt with different true values whose truer answer scores higher
    (ties count half): the area under the ROC curve of each prompt, averaged over prompts. All pairs say more
    than one pair a prompt. None if no prompt has such a pair.
    """
    shares = [share for s, t in zip(scores, truths, strict=True) if (share := right_share(s, t)) is not None]
    return mean_interval(shares) if shares else None


def right_share(scores: Sequence[float | None], truths: Sequence[float]) -> float | None:
    """Share of the pairs of answers with different true values that the scores order rightly (None ranks
    lowest).

    >>> right_share([0.1, 0.7, 0.4], [0, 1, 0])
    1.0
    """
    ranked, known = np.array([-np.inf if s is None else s for s in scores]), np.asarray(truths, dtype=float)
    truer = known[:, None] > known[None, :]
    right = (ranked[:, None] > ranked[None, :]) + 0.5 * (ranked[:, None] == ranked[None, :])
    return float(right[truer].mean()) if truer.any() else None


def expected_best(scores: Sequence[float | None], truths: Sequence[float], n: int) -> float:
    """Mean over all subsets of n answers of the true value of the highest-scored one; tied answers share
    their mean. The answer of rank r (1 is the lowest) is the best of C(r - 1, n - 1) of the C(k, n) subsets.

    >>> expected_best([0.1, 0.7, 0.4], [0, 1, 0], 2)  # best of {0.1, 0.7}, {0.1, 0.4}, {0.7, 0.4}
    0.6666666666666666
    """
    ranked = np.array([-np.inf if s is None else s for s in scores])
    known = np.asarray(truths, dtype=float)
    shared = np.array([known[ranked == s].mean() for s in ranked])[np.argsort(ranked, kind="stable")]
    return float(sum(comb(rank, n - 1) * value for rank, value in enumerate(shared)) / comb(len(shared), n))
