"""Generalised advantage estimation (GAE) over the masked-in steps of each trajectory."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Sequence

from ratchet.components.data.step_values import packed
from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.recipes.ranges import Bool, Share
from ratchet.components.types import Columns, Context, Group


def recursion(
    rewards: Sequence[float], values: Sequence[float], mask: Sequence[bool], gamma: float, gae_lambda: float
) -> tuple[list[float], list[float]]:
    """Advantages and returns (T), 0 outside the loss mask. Steps between masked-in steps (tool outputs, other
    speakers) neither discount nor bootstrap. The value after the last masked-in step is 0.
    """
    rewards, values, mask = list(rewards), list(values), list(mask)  # arrays are slow step by step
    advantages, returns = [0.0] * len(mask), [0.0] * len(mask)
    running, following = 0.0, 0.0
    for t in reversed(range(len(mask))):
        if not mask[t]:
            continue
        running = rewards[t] + gamma * following - values[t] + gamma * gae_lambda * running
        following = values[t]
        advantages[t], returns[t] = running, running + values[t]
    return advantages, returns


@piece(reads=("{reward}", "values.old"), writes=("advantages", "returns"), paper="arXiv:1506.02438")
def gae(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str | list = "reward.reward_model",
    gamma: Share = 1.0,
    gae_lambda: Share = 0.95,
    whiten: Bool = True,
) -> Columns:
    """GAE(gamma, lambda) (eq. 16): A_t = sum over l of (gamma lambda)^l d_t+l, with d_t = r_t + gamma
    V(s_t+1) - V(s_t); per-step advantages and returns A_t + V(s_t), lists (T). A scalar reward is assigned to
    the last masked-in step; a per-step column (T), e.g. `shaped`, is used as it is.

    `whiten` standardises the advantages over all masked-in steps (sample deviation, n - 1), as usual in PPO
    implementations; returns are not scaled.
    """
    advantages, returns = [], []
    for group in groups:
        rows = [
            recursion(rewards, values, t.mask, gamma, gae_lambda)
            for rewards, values, t in zip(
                step_rewards(group, reward), group.columns["values.old"], group.trajectories, strict=True
            )
        ]
        advantages.append([packed(a) for a, _ in rows])
        returns.append([packed(r) for _, r in rows])
    if whiten:
        advantages = standardised(groups, advantages)
    return {"advantages": advantages, "returns": returns}


def step_rewards(group: Group, reward: str | Sequence[str]) -> list[list[float]]:
    """Rewards of each trajectory as a list (T)."""
    names = [reward] if isinstance(reward, str) else list(reward)
    rows = [[0.0] * len(t.mask) for t in group.trajectories]
    for name in names:
        stepwise = name in group.columns and any(
            isinstance(v, Sequence) and not isinstance(v, str) for v in group.columns[name]
        )
        numbers = group.columns[name] if stepwise else rewards_of(group, name)
        for row, value, trajectory in zip(rows, numbers, group.trajectories, strict=True):
            if stepwise:
                if len(value) != len(row):
                    raise ContractError(
                        f"prompt {group.prompt.id!r}: column {name!r} has {len(value)} values for a "
                        f"trajectory of {len(row)} steps"
                    )
                row[:] = [a + b for a, b in zip(row, value, strict=True)]
            elif any(trajectory.mask):
                row[max(i for i, chosen in enumerate(trajectory.mask) if chosen)] += value
    return rows


Rows = list[list[Sequence[float]]]
"""A row (T) of each trajectory of each group, in arrays: a round of published size fits in memory."""


def standardised(groups: Sequence[Group], rows: Rows) -> Rows:
    """Rows (T) with mean 0 and deviation 1 over the masked-in steps of all groups; 0 elsewhere."""

    every = array("d")
    for group, many in zip(groups, rows, strict=True):
        for trajectory, row in zip(group.trajectories, many, strict=True):
            every.extend(a for a, chosen in zip(row, trajectory.mask, strict=True) if chosen)
    if len(every) < 2:
        return rows
    mean, deviation = statistics.fmean(every), statistics.stdev(every) + 1e-8
    return [
        [
            packed([(a - mean) / deviation if chosen else 0.0 for a, chosen in zip(row, t.mask, strict=True)])
            for t, row in zip(group.trajectories, many, strict=True)
        ]
        for group, many in zip(groups, rows, strict=True)
    ]
