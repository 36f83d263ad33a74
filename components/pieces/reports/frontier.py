"""Report `frontier`: the highest reward within a budget of divergence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratchet.components.evaluation.bootstrap import Interval, mean_interval
from ratchet.components.evaluation.results import Scored
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import NotNegative


@piece(paper="arXiv:2312.14925")
def frontier(
    scored: Scored, *, of: str, to: str = "kl", limit: NotNegative, arms: Sequence[str] = ()
) -> Interval:
    """`of` at a divergence `to` of `limit` on the reward-KL frontier of the arms (checkpoints, or values of
    beta): the means of `of` of the neighbouring arms, interpolated linearly in `to` (Gao et al. draw it over
    the square root). Beyond the arms' range it is the value of the nearest arm. The interval is for new
    prompts.
    """
    chosen = list(arms) or list(scored.splits)
    points = sorted((float(np.mean(scored.by_prompt(arm)[to])), arm) for arm in chosen)
    below = max((p for p in points if p[0] <= limit), default=points[0])
    above = min((p for p in points if p[0] >= limit), default=points[-1])
    share = (limit - below[0]) / (above[0] - below[0]) if above[0] > below[0] else 0.0
    share = min(max(share, 0.0), 1.0)
    rows = [scored.by_prompt(arm)[of] for arm in (below[1], above[1])]
    return mean_interval([(1 - share) * a + share * b for a, b in zip(*rows, strict=True)])
