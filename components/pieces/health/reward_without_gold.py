"""Health rule: a reward that rises alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.evaluation.health import Metrics
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Finite


@piece(paper="arXiv:2210.10760")
def reward_without_gold(history: Sequence[Metrics], *, limit: Finite) -> tuple[bool, float, str]:
    """Over-optimisation (Gao et al., 2022): the optimised reward rose by more than `limit` while the gold
    score did not rise.

    "Does not rise" means by no more than one standard error of the change over prompts, so a flat gold score
    is detected five times in six; a threshold of zero would detect it every second time only.
    """
    first, now = history[0], history[-1]
    gain, gold = now["reward"] - first["reward"], now["gold"] - first["gold"]
    flat = math.hypot(first["gold.error"], now["gold.error"])
    value = gain if math.isfinite(gold) else gold
    return (
        gain > limit and gold <= flat,
        value,
        f"the optimised reward rose by {gain:.3g} since the first round (over {limit:g}) while the gold "
        f"score changed by {gold:.3g}, and its standard error is {flat:.2g}",
    )
