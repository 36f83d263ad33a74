"""Measure `ead`: diversity of the answers to one prompt."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ratchet.components.evaluation.diversity import words
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Context, Group


def expectation_adjusted_distinct(texts: Sequence[str], n: int, vocabulary: int) -> float:
    """Distinct n-grams over their expected number if all C n-grams were drawn uniformly from V:
    N / (V (1 - ((V - 1) / V)^C)). Unlike `distinct_n` it does not fall with the amount of text; 0 without
    n-grams.
    """
    grams = [gram for text in texts for gram in zip(*(words(text)[i:] for i in range(n)), strict=False)]
    return len(set(grams)) / (vocabulary * (1 - (1 - 1 / vocabulary) ** len(grams))) if grams else 0.0


@piece(paper="arXiv:2310.06452")
def ead(
    groups: Sequence[Group], ctx: Context, *, largest: Count = 5, vocabulary: Count = 50257
) -> list[list[float]]:
    """Per-input diversity of the answers to a prompt: expectation-adjusted distinct n-grams, mean over n = 1
    to `largest` (Kirk et al.; defaults of the released code). Each answer has the number of its set. It needs
    several answers per prompt (`evaluate.responses_per_prompt`).
    """
    made = []
    for group in groups:
        texts = [trajectory.text for trajectory in group.trajectories]
        found = [expectation_adjusted_distinct(texts, n, vocabulary) for n in range(1, largest + 1)]
        made.append([statistics.fmean(found)] * len(texts))
    return made
