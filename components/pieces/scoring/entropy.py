"""Scoring piece `entropy`: entropy of a model at each step."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.scoring.logprobs import model_outputs
from ratchet.components.types import Columns, Context, Group


@piece(writes=("entropy.{model}",), paper="arXiv:1707.06347", by_group=True)
def entropy(groups: Sequence[Group], ctx: Context, *, model: str = "policy") -> Columns:
    """`entropy.<model>`, lists (T) in nats: entropy of the next-token distribution at step t."""
    return {f"entropy.{model}": model_outputs(groups, ctx, model, "entropy")}
