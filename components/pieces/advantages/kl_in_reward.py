"""KL penalty inside the reward."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.gae import step_rewards
from ratchet.components.recipes.ranges import NotNegative
from ratchet.components.types import Columns, Context, Group


def penalty(group: Group, old: str, beta: float) -> list[list[float]]:
    """-beta (log pi_old - log pi_ref) at each masked-in step, lists (T)."""
    rows = []
    for i, trajectory in enumerate(group.trajectories):
        own = (trajectory.logprobs or ()) if old == "sampled" else group.columns[f"logprobs.{old}"][i]
        reference = group.columns["logprobs.reference"][i]
        rows.append(
            [
                -beta * (p - q) if chosen else 0.0
                for p, q, chosen in zip(own, reference, trajectory.mask, strict=True)
            ]
        )
    return rows


@piece(
    reads=("{reward}", "logprobs.{old}", "logprobs.reference"), writes=("shaped",), paper="arXiv:2203.02155"
)
def kl_in_reward(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str | list = "reward.reward_model",
    beta: NotNegative = 0.05,
    old: str = "sampled",
) -> Columns:
    """Reward on the last masked-in step minus beta (log pi - log ref) at every step, lists (T) (InstructGPT
    eq. 2); input of `gae`.
    """
    return {
        "shaped": [
            [
                [r + p for r, p in zip(rewards, penalties, strict=True)]
                for rewards, penalties in zip(
                    step_rewards(group, reward), penalty(group, old, beta), strict=True
                )
            ]
            for group in groups
        ]
    }


@piece(
    reads=("{reward}", "logprobs.{old}", "logprobs.reference"),
    writes=("regularised",),
    paper="arXiv:2402.14740",
)
def row(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str | list = "reward.reward_model",
    beta: NotNegative = 0.05,
    old: str = "sampled",
) -> Columns:
    """r - beta log pi/ref of the whole answer, one number per trajectory (RLOO, eq. 3); input of advantages
    that compare whole answers.
    """
    shaped = kl_in_reward(groups, ctx, reward=reward, beta=beta, old=old)["shaped"]
    return {"regularised": [[sum(steps) for steps in rows] for rows in shaped]}
