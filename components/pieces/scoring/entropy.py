"""Entropy of a model at each step."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.scoring.logprobs import asked
from ratchet.components.types import Columns, Context, Group


@piece(writes=("entropy.{model}",), paper="arXiv:1707.06347")
def entropy(groups: Sequence[Group], ctx: Context, *, model: str = "policy") -> Columns:
    """`entropy.<model>`, lists (T) in nats: the entropy of the distribution that step t was drawn from."""
    return {f"entropy.{model}": asked(groups, ctx, model, "entropy")}
