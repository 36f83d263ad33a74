"""New labels for chosen pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.piece import build, piece
from ratchet.components.pieces.selectors.pairs import pair
from ratchet.components.types import Context, Group


@piece(reads=("margin",), writes=("margin",), makes="pairs", paper="arXiv:2307.09288")
def labelled(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str = "reward.instructions",
    verifier: str = "rewards.instructions",
) -> list[Group]:
    """The pairs as `verifier` labels them, two labels a pair: chosen is the answer with the higher label,
    pairs of equal labels are dropped. After a selector such as `best_worst` a reward model proposes the pairs
    and the labels of the round decide (as annotators do between the rounds of Llama 2), so that the policy is
    not optimised against the reward model's errors.
    """
    rescore = build("annotate", {"name": verifier})(groups, ctx)[reward]
    made: list[Group] = []
    for group, row in zip(groups, rescore, strict=True):
        values = [math.nan if value is None else value for value in row]
        best = int(values[1] > values[0])
        found = pair(group.extended({reward: values}), best, 1 - best, values, ctx, reward)
        ctx.counts["pairs confirmed" if not best else "pairs reversed"] += len(found)
        made += found
    return made
