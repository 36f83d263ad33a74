"""The value head's estimates before the update."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.scoring.logprobs import asked
from ratchet.components.types import Columns, Context, Group


@piece(writes=("values.old",), paper="arXiv:1707.06347")
def values(groups: Sequence[Group], ctx: Context, *, model: str = "policy") -> Columns:
    """`values.old`, lists (T): the value of the state in which step t was chosen, under the policy's value head."""
    return {"values.old": asked(groups, ctx, model, "values")}
