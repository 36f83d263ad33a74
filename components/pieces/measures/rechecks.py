"""Measures of a judge that is made to continue: its verdicts after 0, 1, ... continuations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from math import comb
from statistics import fmean

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.verdict import verdict_of
from ratchet.components.recipes.ranges import Natural
from ratchet.components.types import Context, Group, Trajectory

MOST = 200
"""Subsets of judgements that are averaged over; instead of more, the disjoint ones."""


def right_after(group: Group, trajectory: Trajectory, marker: str) -> list[bool]:
    """Whether the verdict after 0, 1, ... continuations is the prompt's answer. `DataError` without them."""
    texts = trajectory.meta.get("verdicts", ())
    if len(texts) != 1 + trajectory.meta.get("continuations", -1):
        raise DataError(
            f"prompt {group.prompt.id!r}: expected a verdict after every continuation, got {len(texts)} for "
            f"{trajectory.meta.get('continuations')} continuations; use the rollout `budget_forced` with "
            "`verdicts: true`"
        )
    return [verdict_of(text, marker) == group.prompt.answer for text in texts]


def _each(groups: Sequence[Group], marker: str, of: Callable[[list[bool]], float]) -> list[list[float]]:
    return [[float(of(right_after(g, t, marker))) for t in g.trajectories] for g in groups]


@piece(paper="arXiv:2505.11875")
def rechecks(
    groups: Sequence[Group], ctx: Context, *, after: Natural = 0, marker: str = "So"
) -> list[list[float]]:
    """Accuracy of the verdict `after` so many continuations: 1 or 0 for each judgement. `DataError` for
    judgements without one.
    """
    return _each(groups, marker, lambda right: _at(right, after))


@piece(paper="arXiv:2505.11875")
def gained(groups: Sequence[Group], ctx: Context, *, marker: str = "So") -> list[list[float]]:
    """Accuracy of the last verdict minus that of the first, after no continuation: -1, 0 or 1."""
    return _each(groups, marker, lambda right: right[-1] - right[0])


@piece(paper="arXiv:2505.11875")
def corrected(groups: Sequence[Group], ctx: Context, *, marker: str = "So") -> list[list[float]]:
    """Flips from wrong to right: 1 where the first verdict is wrong and the last one right."""
    return _each(groups, marker, lambda right: right[-1] and not right[0])


@piece(paper="arXiv:2505.11875")
def spoilt(groups: Sequence[Group], ctx: Context, *, marker: str = "So") -> list[list[float]]:
    """Flips from right to wrong: 1 where the first verdict is right and the last one wrong. `gained` is
    `corrected` minus this.
    """
    return _each(groups, marker, lambda right: right[0] and not right[-1])


@piece(paper="arXiv:2505.11875")
def majority(groups: Sequence[Group], ctx: Context, *, marker: str = "So") -> list[list[float]]:
    """Accuracy of a vote of as many first verdicts as a judgement has passages (continuations + 1), the
    control with equally many passages. The most frequent letter wins, letters that tie share the win, and a
    judgement without a verdict has no vote. The mean over the subsets of the judgements of a task (over the
    disjoint ones if there are more than 200); each judgement has the number of its task. `DataError` for
    fewer judgements than passages.
    """
    rows = []
    for group in groups:
        first = [_first(group, t, marker) for t in group.trajectories]
        passages = max(len(right_after(group, t, marker)) for t in group.trajectories)
        n, k = len(first), passages
        if n < k:
            raise DataError(
                f"rechecks.majority: prompt {group.prompt.id!r} has {n} judgements of {k} passages; raise "
                "evaluate.responses_per_prompt"
            )
        subsets = (
            combinations(first, k)
            if comb(n, k) <= MOST
            else [first[i : i + k] for i in range(0, n - k + 1, k)]
        )
        rows.append([fmean(_won(subset, group.prompt.answer) for subset in subsets)] * n)
    return rows


def _at(right: list[bool], after: int) -> bool:
    if after >= len(right):
        raise DataError(f"rechecks: expected a verdict after {after} continuations, got {len(right) - 1}")
    return right[after]


def _first(group: Group, trajectory: Trajectory, marker: str) -> str | None:
    right_after(group, trajectory, marker)
    return verdict_of(trajectory.meta["verdicts"][0], marker)


def _won(verdicts: Sequence[str | None], answer: str | None) -> float:
    """1 over the number of letters that tie for the most votes if `answer` is one of them, else 0."""
    votes = Counter(letter for letter in verdicts if letter)
    best = [letter for letter, count in votes.items() if count == max(votes.values())]
    return (answer in best) / max(len(best), 1)
