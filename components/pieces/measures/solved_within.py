"""Measure `solved_within`: whether an episode is solved within a number of turns."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Finite
from ratchet.components.types import Context, Group


@piece(paper="arXiv:2507.14295")
def solved_within(
    groups: Sequence[Group], ctx: Context, *, turns: Count = 1, at_least: Finite = 1.0
) -> list[list[float]]:
    """1 for an episode in which one of the policy's first `turns` turns has a reward of `at_least` (Succ@k,
    section 4 of the paper), else 0. A turn without reward counts as unsolved, and so does an episode whose
    environment broke. `DataError` for answers that are no episodes.
    """
    found = []
    for group in groups:
        row = []
        for trajectory in group.trajectories:
            acts = [span for span in trajectory.spans if span.kind == "act"]
            if not acts and trajectory.stop != "error":
                raise DataError(
                    f"solved_within: prompt {group.prompt.id!r} has an answer without turns; evaluate with "
                    "the rollout `episodes`"
                )
            rewards = [span.reward for span in acts[:turns] if span.reward is not None]
            row.append(float(any(reward >= at_least for reward in rewards)))
        found.append(row)
    return found
