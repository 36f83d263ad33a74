"""Length-based rewards, in answer tokens (including the end-of-turn token)."""

from __future__ import annotations

import math

from ratchet.components.piece import each, piece
from ratchet.components.recipes.ranges import Count, Finite
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.length", "reward.length.status"), paper="arXiv:2310.03716")
@each
def length(prompt: Prompt, trajectory: Trajectory, *, target: Count = 32) -> float:
    """1 at `target` tokens, falling linearly to 0 at 0 and at twice `target` tokens; a simple reward for
    tests.
    """
    return max(0.0, 1 - abs(sum(trajectory.mask) - target) / target)


@piece(writes=("reward.cosine", "reward.cosine.status"), paper="arXiv:2502.03373")
@each
def cosine(
    prompt: Prompt,
    trajectory: Trajectory,
    *,
    maximum: Count = 1000,
    shortest: Finite = 1.0,
    longest: Finite = 0.5,
) -> float:
    """Correct answers earn more when short, along a cosine from `shortest` at 0 tokens to `longest` at
    `maximum` tokens; wrong answers the negative (section 4.2). Correctness is that of `rewards.exact_answer`.
    """
    from ratchet.components.pieces.rewards.exact_answer import exact_answer

    share = min(sum(trajectory.mask), maximum) / maximum
    value = longest + (shortest - longest) * (1 + math.cos(share * math.pi)) / 2
    return value if exact_answer.__wrapped__(prompt, trajectory) else -value
