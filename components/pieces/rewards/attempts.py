"""Reward `attempts`: the first right attempt counts less the later it comes, and repeats cost."""

from __future__ import annotations

from ratchet.components.piece import each, piece
from ratchet.components.recipes.ranges import Finite, NotNegative, Share
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.attempts", "reward.attempts.status"), paper="arXiv:2507.14295")
@each
def attempts(
    prompt: Prompt,
    trajectory: Trajectory,
    *,
    decay: Share = 0.5,
    repeat: NotNegative = 0.5,
    invalid: Finite = -0.1,
) -> float | None:
    """decay^k [right after k valid attempts] - repeat (1 - E/T) + invalid M, with T valid attempts, E
    distinct ones (without case and surrounding whitespace) and M invalid turns (UFO, section 3.3, with k
    counted as in its code). Skipped for a trajectory without attempts.
    """
    acts = [span for span in trajectory.spans if span.kind == "act"]
    if not acts:
        return None
    texts = [m["content"] for m in trajectory.messages if m["role"] == "assistant"]
    valid = [" ".join(t.split()).casefold() for t, span in zip(texts, acts, strict=True) if span.valid]
    right = [k for k, span in enumerate(s for s in acts if s.valid) if (span.reward or 0.0) >= 1]
    solved = decay ** right[0] if right else 0.0
    repeats = 1 - len(set(valid)) / len(valid) if valid else 0.0
    return solved - repeat * repeats + invalid * sum(not span.valid for span in acts)
