"""Measure `pass_at_k`: whether one of k answers passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Finite
from ratchet.components.types import Context, Group


@piece(reads=("{reward}",), paper="arXiv:2107.03374")
def pass_at_k(
    groups: Sequence[Group], ctx: Context, *, reward: str, k: Count = 1, at_least: Finite = 1.0
) -> list[list[float]]:
    """Chance that one of k answers to a prompt has a reward of `at_least` (Chen et al., equation 1): without
    bias from n >= k answers of which c pass, 1 - C(n - c, k) / C(n, k). Each answer has the number of its
    prompt. `DataError` for fewer than k answers.
    """
    found = []
    for group in groups:
        values = group.columns[reward]
        if len(values) < k:
            raise DataError(
                f"pass_at_k: prompt {group.prompt.id!r} has {len(values)} answers, but k is {k}; raise "
                "evaluate.responses_per_prompt, or lower k"
            )
        failed = sum(value is None or value < at_least for value in values)
        found.append([1 - math.comb(failed, k) / math.comb(len(values), k)] * len(values))
    return found
