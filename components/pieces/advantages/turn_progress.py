"""Advantage piece `turn_progress`: each turn's reward, with a bonus for progress over the turn before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import NotNegative, Share
from ratchet.components.types import Columns, Context, Group


@piece(
    reads=("turn", "turn_end", "turn_reward"),
    writes=("advantages", "turn.first"),
    compares=True,
    paper="arXiv:2409.12917",
    by_group=True,
)
def turn_progress(
    groups: Sequence[Group],
    ctx: Context,
    *,
    bonus: NotNegative = 10.0,
    first: NotNegative = 1.0,
    discount: Share = 0.0,
) -> Columns:
    """Advantages (T), constant within a turn: its return minus the mean return of the same turn in the other
    episodes of the prompt that reach it; 0 in a turn that no other episode reaches.

    The reward of turn k is r_k + `bonus` (r_k - r_{k-1}), of the first turn `first` r_1 (SCoRe: `first` 0 in
    stage I, 1 in stage II with the bonus alpha, section 5). The return of a turn is its reward plus
    `discount` times the return of the next one; with 0, a turn is not paid for what it leaves the next one to
    repair.
    `turn.first` (T) is 1 in the first turn, for objectives with `where`.
    """
    columns: dict[str, list] = {"advantages": [], "turn.first": []}
    for group in groups:
        returns = [
            _returns(rewards, bonus, first, discount)
            for rewards in (turn_rewards(group, i) for i in range(len(group.trajectories)))
        ]
        advantages = [
            [own[k] - _others(returns, i, k, default=own[k]) for k in range(len(own))]
            for i, own in enumerate(returns)
        ]
        columns["advantages"].append(
            [
                [row[int(turn) - 1] if turn else 0.0 for turn in turns]
                for row, turns in zip(advantages, group.columns["turn"], strict=True)
            ]
        )
        columns["turn.first"].append(
            [[float(turn == 1) for turn in turns] for turns in group.columns["turn"]]
        )
    return columns


def turn_rewards(group: Group, index: int) -> list[float]:
    """Rewards of the turns of a trajectory. `DataError` without turns."""
    ends, rewards = group.columns["turn_end"][index], group.columns["turn_reward"][index]
    found = [float(reward) for end, reward in zip(ends, rewards, strict=True) if end]
    if not found:
        raise DataError(
            f"prompt {group.prompt.id!r}: trajectory {index} has no turn; use the rollout `episodes`"
        )
    return found


def _returns(rewards: Sequence[float], bonus: float, first: float, discount: float) -> list[float]:
    shaped = [first * rewards[0]]
    shaped += [r + bonus * (r - before) for before, r in pairwise(rewards)]
    for k in reversed(range(len(shaped) - 1)):
        shaped[k] += discount * shaped[k + 1]
    return shaped


def _others(returns: Sequence[Sequence[float]], i: int, k: int, default: float) -> float:
    """Mean return of turn k in the other episodes that reach it."""
    values = [other[k] for j, other in enumerate(returns) if j != i and k < len(other)]
    return sum(values) / len(values) if values else default
