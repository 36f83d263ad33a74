"""Reward by a learned reward model."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.inference.answers import reward_model_scores
from ratchet.components.piece import piece
from ratchet.components.types import Columns, Context, Group


@piece(writes=("reward.{model}", "reward.{model}.status"), paper="arXiv:2203.02155", by_group=True)
def reward_model(groups: Sequence[Group], ctx: Context, *, model: str = "reward_model") -> Columns:
    """`reward.<model>`: scalar of a reward model for prompt and answer, in its own units (Bradley-Terry
    logits).
    """
    values, statuses = reward_model_scores(groups, ctx, model)
    return {f"reward.{model}": values, f"reward.{model}.status": statuses}
