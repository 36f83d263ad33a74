"""Measure `votes`: accuracy of a judge by the sum of the scores of several judgements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb
from statistics import fmean

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.judgement import picks, scores_of, task_of
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Context, Group

MOST = 200
"""Subsets of k judgements that are averaged over; instead of more, the disjoint ones."""


@piece(paper="arXiv:2504.02495")
def votes(groups: Sequence[Group], ctx: Context, *, k: Count | None = None) -> list[list[float]]:
    """Accuracy of k judgements together, of all of a task without k: the right answer has a strictly higher
    sum of scores than each other answer (voting). A judgement without a score for each answer
    has no vote; a task without any vote is failed. The mean over the subsets of k of a task's n judgements,
    over the n // k disjoint ones if there are more than 200; each judgement has the number of its task.
    `DataError` for n < k.
    """
    return [[_accuracy(group, k)] * len(group.trajectories) for group in groups]


@piece(paper="arXiv:2504.02495")
def gained(groups: Sequence[Group], ctx: Context, *, k: Count | None = None) -> list[list[float]]:
    """Accuracy of k judgements together minus that of one, on the same judgements: -1 to 1."""
    return [[_accuracy(group, k) - _accuracy(group, 1)] * len(group.trajectories) for group in groups]


def _accuracy(group: Group, k: int | None) -> float:
    answer, count = task_of(group.prompt)
    given = [scores_of(trajectory.text, count) for trajectory in group.trajectories]
    n, k = len(given), k or len(given)
    if n < k:
        raise DataError(
            f"votes: prompt {group.prompt.id!r} has {n} judgements, but k is {k}; raise "
            "evaluate.responses_per_prompt, or lower k"
        )
    subsets = (
        combinations(given, k) if comb(n, k) <= MOST else (given[i : i + k] for i in range(0, n - k + 1, k))
    )
    return fmean(_right(subset, answer) for subset in subsets)


def _right(judgements: Sequence[dict[str, int] | None], answer: str) -> bool:
    totals = Counter[str]()
    for scores in judgements:
        totals.update(scores or {})
    return bool(totals) and picks(totals, answer)
