"""Bradley-Terry regression on fixed features, for the gold measure (the judge of the evaluation that no
training reads) and the reward model's linear probe.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.components.types import Group

FOLDS = 4


def bradley_terry(differences: np.ndarray, penalty: float) -> np.ndarray:
    """w (F,) minimising mean log(1 + exp(−w·Δx)) + penalty/2 |w|² over feature differences Δx (N,F), chosen −
    rejected.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        logits = differences @ w
        return (
            float(np.logaddexp(0, -logits).mean() + penalty / 2 * w @ w),
            -differences.T @ expit(-logits) / len(differences) + penalty * w,
        )

    return minimize(
        loss, np.zeros(differences.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 500}
    ).x


def choose_penalty(
    differences: np.ndarray, topics: np.ndarray, penalties: Sequence[float]
) -> tuple[float, float | None]:
    """The penalty with the lowest held-out loss, with topics (N,) never split between folds, and its held-out
    accuracy.

    With a single topic nothing can be held out: the middle of `penalties`, and None.
    """
    from scipy.special import log_expit

    number = np.unique(topics, return_inverse=True)[1]
    # topics in random order are dealt to the folds
    fold = np.random.default_rng(0).permutation(number.max() + 1)[number] % FOLDS
    if len(np.unique(fold)) < 2:
        return penalties[len(penalties) // 2], None
    results = []
    for penalty in penalties:
        margins = np.empty(len(differences))
        for f in np.unique(fold):
            margins[fold == f] = differences[fold == f] @ bradley_terry(differences[fold != f], penalty)
        results.append((float(-log_expit(margins).mean()), penalty, float((margins > 0).mean())))
    _, penalty, right = min(results)
    return penalty, right


def topics_of(groups: Sequence[Group]) -> np.ndarray:
    """(N,): the topic of each group, or its prompt if it has none."""
    return np.array(
        [
            str(
                g.prompt.meta.get("topic")
                or "\n".join(m["content"] for m in g.prompt.messages)
                or g.prompt.id
            )
            for g in groups
        ]
    )
