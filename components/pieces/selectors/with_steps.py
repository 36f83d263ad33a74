"""Selector `with_steps`: answers in which a column marks at least one step."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece(reads=("{column}",), makes="answers", paper="arXiv:2406.03816")
def with_steps(groups: Sequence[Group], ctx: Context, *, column: str) -> list[Group]:
    """The answers with a step where `column`, lists (T), is positive; empty groups are dropped. For an
    objective with `where: column`, to which the others would add nothing.
    """
    kept = []
    for group in groups:
        marked = [i for i, row in enumerate(group.columns[column]) if any(value > 0 for value in row)]
        ctx.counts["answers without a marked step"] += len(group.trajectories) - len(marked)
        if marked:
            kept.append(group.take(marked))
    return kept
