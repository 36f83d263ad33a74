"""Format reward: matches the answer against a regular expression."""

from __future__ import annotations

import re

from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.format", "reward.format.status"), paper="arXiv:2501.12948")
@each
def format(
    prompt: Prompt, trajectory: Trajectory, *, pattern: str = r"<think>.+?</think>\s*<answer>.+?</answer>"
) -> float:
    """1 if the whole stripped text matches `pattern` (the dot also matches newlines), else 0."""
    return float(re.fullmatch(pattern, trajectory.text.strip(), re.DOTALL) is not None)
