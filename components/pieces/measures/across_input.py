"""Measure `across_input`: diversity of the answers to different prompts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.measures.ead import expectation_adjusted_distinct
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Context, Group


@piece(paper="arXiv:2310.06452", whole=True)
def across_input(
    groups: Sequence[Group], ctx: Context, *, largest: Count = 5, vocabulary: Count = 50257
) -> list[list[float]]:
    """Across-input diversity (Kirk et al.): expectation-adjusted distinct n-grams of a set with one answer to
    each prompt, mean over n = 1 to `largest`. The first answers are one set, the second answers another, and
    so on: an answer has the number of its set, so the mean over answers averages over the sets. The number is
    the same for every prompt: compare it by seed, not by prompt.
    """
    number = min(len(group.trajectories) for group in groups)
    sets = [[group.trajectories[i].text for group in groups] for i in range(number)]
    values = [
        statistics.fmean(expectation_adjusted_distinct(texts, n, vocabulary) for n in range(1, largest + 1))
        for texts in sets
    ]
    spare = statistics.fmean(values)  # further answers of prompts that have more than the others
    return [[*values, *[spare] * (len(group.trajectories) - number)] for group in groups]
