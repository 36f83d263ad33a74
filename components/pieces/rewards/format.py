"""Does the answer have the asked form?"""

from __future__ import annotations

import re

from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.format", "reward.format.status"), paper="arXiv:2501.12948")
@each
def format(prompt: Prompt, trajectory: Trajectory, *, pattern: str = r"<think>.+?</think>\s*<answer>.+?</answer>") -> float:
    """1 when the whole text, less outer space, matches the regular expression `pattern` (its dot also matches newlines)."""
    return float(re.fullmatch(pattern, trajectory.text.strip(), re.DOTALL) is not None)
