"""Win rate of an answer against the policy's other answers to the same prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import BelowHalf, Names
from ratchet.components.types import OK, Columns, Context, Group


def preference(first: Sequence[float], second: Sequence[float]) -> float:
    """P(first preferred to second) in [0, 1]: the mean over judges of 1, 1/2 or 0 for a higher, equal or
    lower score. P(a, b) + P(b, a) = 1. With several judges it may be intransitive.
    """
    return sum((a > b) + 0.5 * (a == b) for a, b in zip(first, second, strict=True)) / len(first)


@piece(
    reads=("{rewards}",),
    writes=("reward.win_rate", "reward.win_rate.status"),
    compares=True,
    paper="arXiv:2401.04056",
    by_group=True,
)
def win_rate(
    groups: Sequence[Group],
    ctx: Context,
    *,
    rewards: Names,
    flipped: BelowHalf = 0.0,
    against: str | None = None,
) -> Columns:
    """`reward.win_rate` of answer i, 1 / (G - 1) x sum over j != i of P(y_i > y_j): its mean preference over
    each *other* answer to its prompt, in [0, 1]. The self-play reward of SPO, with the batch as the queue.
    Its optimum is the minimax winner of the preference function, which exists for intransitive preferences
    too. `rewards`: columns of the judges' scores, one population each. `flipped`: share of comparisons with
    the opposite label (simulated annotation noise), a function of seed, round, prompt and pair. `against`:
    the actor whose answers are the opponents (Nash-MD: `mixture`, arXiv 2312.00886); null: all. Skipped for
    an answer without an opponent.
    """
    made = []
    for group in groups:
        scores = list(zip(*(rewards_of(group, name) for name in rewards), strict=True))
        wins = [[0.0] * len(scores) for _ in scores]
        for i in range(len(scores)):
            for j in range(i):
                won = preference(scores[i], scores[j])
                if _uniform(f"{ctx.seed}/{ctx.round}/{group.prompt.id}/{i}/{j}") < flipped:
                    won = 1 - won
                wins[i][j], wins[j][i] = won, 1 - won
        other = [against in (None, t.actor) for t in group.trajectories]
        row = []
        for i, won in enumerate(wins):
            count = sum(other) - other[i]
            total = sum(win for win, counts in zip(won, other, strict=True) if counts)
            row.append(total / count if count else None)
        made.append(row)
    alone = "skipped: no other answer to compare with"
    return {
        "reward.win_rate": made,
        "reward.win_rate.status": [[alone if value is None else OK for value in row] for row in made],
    }


def _uniform(key: str) -> float:
    """A pseudo-random number in [0, 1), a function of `key` only."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
