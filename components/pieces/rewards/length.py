"""Length-based rewards, in answer tokens (including the end-of-turn token)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.components.piece import build, each, piece
from ratchet.components.recipes.ranges import Count, Finite, RewardSpec
from ratchet.components.types import OK, Columns, Context, Group, Prompt, Trajectory


@piece(writes=("reward.length", "reward.length.status"), paper="arXiv:2310.03716")
@each
def length(prompt: Prompt, trajectory: Trajectory, *, target: Count = 32) -> float:
    """1 at `target` tokens, falling linearly to 0 at 0 and at twice `target` tokens; a simple reward for
    tests.
    """
    return max(0.0, 1 - abs(sum(trajectory.mask) - target) / target)


@piece(writes=("reward.cosine", "reward.cosine.status"), paper="arXiv:2502.03373", by_group=True)
def cosine(
    groups: Sequence[Group],
    ctx: Context,
    *,
    maximum: Count = 1000,
    shortest: Finite = 1.0,
    longest: Finite = 0.5,
    verifier: RewardSpec = {"name": "rewards.exact_answer"},  # noqa: B006  read only
) -> Columns:
    """Correct answers earn more when short, along a cosine from `shortest` at 0 tokens to `longest` at
    `maximum` tokens; wrong answers the negative (section 4.2). Correct: a reward of 1 by `verifier`, whose
    status an answer without such a reward has.
    """

    def value(right: float | None, trajectory: Trajectory) -> float | None:
        share = min(sum(trajectory.mask), maximum) / maximum
        value = longest + (shortest - longest) * (1 + math.cos(share * math.pi)) / 2
        return None if right is None else value if right >= 1 else -value

    written = build("annotate", verifier)(groups, ctx)
    (name,) = (column for column in written if not column.endswith(".status"))
    return {
        "reward.cosine": [
            [value(right, t) for right, t in zip(row, group.trajectories, strict=True)]
            for row, group in zip(written[name], groups, strict=True)
        ],
        "reward.cosine.status": written.get(f"{name}.status", [[OK] * len(row) for row in written[name]]),
    }
