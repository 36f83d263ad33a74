"""Report `regret`: what choosing a checkpoint by a proxy costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.evaluation.bootstrap import Interval
from ratchet.components.evaluation.results import Scored
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Seed


@piece(compares=True, paper="arXiv:2311.00168")
def regret(
    scored: Scored, *, of: str, to: str, arms: Sequence[str] = (), halves: Count = 200, seed: Seed = 0
) -> Interval:
    """`to` of the arm with the highest `to` minus `to` of the arm with the highest `of`, all on the same
    prompts: the loss in the gold score when the checkpoint is chosen by its reward. Both arms are chosen on a
    random half of the prompts and compared on the other, so that chance alone gives 0 on average; mean over
    `halves`. `arms`: empty for all.
    """
    chosen = list(arms) or list(scored.splits)
    if len(chosen) < 2:
        raise DataError("report regret: expected two arms or more")
    proxy, gold = (np.array(scored.paired(chosen, name)) for name in (of, to))
    if gold.shape[1] < 2:
        raise DataError("report regret: expected two prompts or more, to choose on a half of them")
    rng, size = np.random.default_rng(seed), gold.shape[1]
    losses = []
    for _ in range(halves):
        order = rng.permutation(size)
        one, two = order[: size // 2], order[size // 2 :]
        by_gold, by_proxy = (values[:, one].mean(1).argmax() for values in (gold, proxy))
        losses.append(float(gold[by_gold][two].mean() - gold[by_proxy][two].mean()))
    low, high = np.quantile(losses, [0.025, 0.975])
    mean = float(np.mean(losses))
    return Interval(mean=mean, low=min(float(low), mean), high=max(float(high), mean), n=size)
