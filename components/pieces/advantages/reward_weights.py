"""Weights of answers for the option `weight_column` of `likelihood`: of reward-weighted regression, and of
classes of data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Columns, Context, Group


@piece(reads=("{reward}",), writes=("sample_weight",), compares=True, paper="arXiv:2404.14367")
def reward_weights(
    groups: Sequence[Group], ctx: Context, *, reward: str | list = "reward.reward_model", beta: Positive = 0.1
) -> Columns:
    """G softmax(r / beta) over the G answers to a prompt, one number per answer with mean 1: the weights of
    reward-weighted regression (RWR). With a large beta the weights are nearly equal, with a small one only
    the best answer has any. None is negative, so no answer's probability is lowered.
    """
    rows = []
    for group in groups:
        rewards = rewards_of(group, reward)
        best = max(rewards, default=0.0)
        exponentials = [math.exp((r - best) / beta) for r in rewards]
        total = sum(exponentials)
        rows.append([len(exponentials) * x / total for x in exponentials])
    return {"sample_weight": rows}


@piece(reads=("label",), writes=("sample_weight",), paper="arXiv:2309.11235")
def by_class(
    groups: Sequence[Group], ctx: Context, *, expert: Positive = 1.0, other: Positive = 0.1
) -> Columns:
    """`expert` for answers of the class with label 1, `other` for the rest: exp(r_class / beta) of
    conditioned reward-weighted fine-tuning (C-RLFT). The defaults are those of the released code.
    """
    return {
        "sample_weight": [
            [expert if label > 0.5 else other for label in group.columns["label"]] for group in groups
        ]
    }
