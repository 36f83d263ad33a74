"""Scoring piece `values`: value estimates before the update."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.scoring.logprobs import model_outputs
from ratchet.components.types import Columns, Context, Group


@piece(writes=("values.old",), paper="arXiv:1707.06347", by_group=True)
def values(groups: Sequence[Group], ctx: Context, *, model: str = "policy") -> Columns:
    """`values.old`, lists (T): value of the state before token t, by the policy's value head."""
    return {"values.old": model_outputs(groups, ctx, model, "values")}
