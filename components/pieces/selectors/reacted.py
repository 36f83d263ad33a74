"""Selector `reacted`: answers with a reaction, each beside one without."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import drawn, pair
from ratchet.components.types import Context, Group


@piece(reads=("{signal}",), writes=("margin",), makes="pairs", paper="arXiv:2505.14946")
def reacted(groups: Sequence[Group], ctx: Context, *, signal: str = "reacted") -> list[Group]:
    """The logged answers whose column `signal` is 1, each with one of 0 to the same prompt, as many as there
    are of the rarer kind: negatives are down-sampled, and prompts have the same weight in both classes. Which
    ones depends on seed, round and prompt id. Two equal texts with different signals make no pair.
    """
    made = []
    for group in groups:
        values, key = group.columns[signal], f"{ctx.seed}/{ctx.round}/{group.prompt.id}"
        with_it, without = (
            drawn([i for i, value in enumerate(values) if (value > 0.5) == wanted], f"{key}/{wanted}")
            for wanted in (True, False)
        )
        ctx.counts["answers with a reaction"] += len(with_it)
        ctx.counts["answers without"] += len(without)
        for one, other in zip(with_it, without, strict=False):
            made += pair(group, one, other, values, ctx, signal)
    return made
