"""Measure `pair_accuracy`: how often a reward orders two answers to a prompt rightly."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.best_of_n import right_share
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece(reads=("{reward}", "{truth}"), paper="arXiv:2310.02743")
def pair_accuracy(
    groups: Sequence[Group], ctx: Context, *, reward: str = "reward.reward_model", truth: str
) -> list[list[float]]:
    """Share of the pairs of a prompt's answers with different `truth` whose truer answer has the higher
    `reward`, ties counting half: the area under the ROC curve of a prompt. Every answer gets its prompt's
    share, 1/2 if all answers are equally true. Both are columns of the evaluation's metrics.
    """
    shares = []
    for group in groups:
        share = right_share(group.columns[reward], [float(v) for v in group.columns[truth]])
        shares.append([0.5 if share is None else share] * len(group.trajectories))
    return shares
