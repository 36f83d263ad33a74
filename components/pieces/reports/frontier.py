"""Report `frontier`: the highest reward within a budget of divergence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.components.evaluation.bootstrap import Interval, mean_interval
from ratchet.components.evaluation.results import Scored
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import NotNegative


@piece(compares=True, paper="arXiv:2312.14925")
def frontier(
    scored: Scored, *, of: str, to: str = "kl", limit: NotNegative, arms: Sequence[str] = ()
) -> Interval:
    """The highest `of` within a divergence `to` of `limit` on the reward-KL frontier of the arms
    (checkpoints, or values of beta), all on the same prompts: that of an arm within it, or at the limit the
    means of the neighbouring arms, interpolated linearly in `to` (Gao et al. draw it over the square root).
    Below the arms' range it is the value of the nearest arm. The interval is for new prompts, with the arms
    given.
    """
    chosen = list(arms) or list(scored.splits)
    points = sorted((float(np.mean(scored.by_prompt(arm)[to])), arm) for arm in chosen)
    below = max((p for p in points if p[0] <= limit), default=points[0])
    above = min((p for p in points if p[0] >= limit), default=points[-1])
    share = (limit - below[0]) / (above[0] - below[0]) if above[0] > below[0] else 0.0
    share = min(max(share, 0.0), 1.0)
    rows = dict(zip(chosen, scored.paired(chosen, of), strict=True))
    ends = zip(rows[below[1]], rows[above[1]], strict=True)
    within = [rows[arm] for divergence, arm in points if divergence <= limit]
    return mean_interval(max([[(1 - share) * a + share * b for a, b in ends], *within], key=np.mean))
