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
"""Subsets of judgements that are averaged over; of more, as many disjoint ones as there are."""


@piece(paper="arXiv:2504.02495")
def votes(groups: Sequence[Group], ctx: Context, *, k: Count = 1) -> list[list[float]]:
    """Accuracy of k judgements together (voting, section 4): the right answer has a strictly higher sum of
    scores than each other answer. A judgement without a score for each answer has no vote; without any vote
    the task is failed. The mean over the subsets of k of a prompt's n judgements (over the n // k disjoint
    ones if there are more than 200). Each judgement has the number of its prompt. `DataError` for n < k.
    """
    return [[_accuracy(group, k)] * len(group.trajectories) for group in groups]


@piece(paper="arXiv:2504.02495")
def gained(groups: Sequence[Group], ctx: Context, *, k: Count = 8) -> list[list[float]]:
    """Accuracy of k judgements together minus that of one, on the same judgements: -1 to 1."""
    return [[_accuracy(group, k) - _accuracy(group, 1)] * len(group.trajectories) for group in groups]


def _accuracy(group: Group, k: int) -> float:
    answer, count = task_of(group.prompt)
    given = [scores_of(trajectory.text, count) for trajectory in group.trajectories]
    if len(given) < k:
        raise DataError(
            f"votes: prompt {group.prompt.id!r} has {len(given)} judgements, but k is {k}; raise "
            "evaluate.responses_per_prompt, or lower k"
        )
    few = comb(len(given), k) <= MOST
    chosen = combinations(given, k) if few else (given[i : i + k] for i in range(0, len(given) - k + 1, k))
    found = list[float]()
    for subset in chosen:
        totals = Counter[str]()
        for scores in subset:
            totals.update(scores or {})
        found.append(float(bool(totals) and picks(totals, answer)))
    return fmean(found)
