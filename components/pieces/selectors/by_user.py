"""Selector `by_user`: the pairs of a user as one group, some of them as context for the others."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Context, Group


@piece(writes=("context",), paper="arXiv:2408.10075")
def by_user(groups: Sequence[Group], ctx: Context, *, context: Count = 6, draws: Count = 1) -> list[Group]:
    """One group of all pairs of a user (`user` in the prompt's meta), chosen first in each pair, with the
    column `context`: 1 for both rows of `context` pairs, which tell about the user, 0 for the others, whose
    labels are to be predicted. Drawn `draws` times for each user, a function of the seed, the user and the
    draw. Users with at most `context` pairs are left out. The rows keep the tokens of their own prompts; the
    group has the prompt of its first pair.

    `DataError` for a pair without a user, and for pairs that are not tokenised yet.
    """
    users: dict[str, list[Group]] = {}
    for group in groups:
        if "user" not in group.prompt.meta:
            raise DataError(f"by_user: expected `user` in the meta of the pair {group.prompt.id!r}, got none")
        if any("tokens" not in path.inputs for path in group.trajectories):
            raise DataError(
                f"by_user: the pair {group.prompt.id!r} has no tokens; select in a phase's `select`"
            )
        users.setdefault(str(group.prompt.meta["user"]), []).append(group)
    made = []
    for user, pairs in users.items():
        if len(pairs) <= context:
            ctx.counts["users with too few pairs"] += 1
            continue
        for draw in range(draws):
            order = random.Random(f"{ctx.seed}/{user}/{draw}").sample(pairs, len(pairs))
            prompt = dataclasses.replace(order[0].prompt, id=f"{user}/{draw}")
            rows = tuple(path for pair in order for path in pair.trajectories)
            tells = [float(i < context) for i in range(len(order)) for _ in range(2)]
            made.append(Group(prompt, rows, {"context": tells}))
    return made
