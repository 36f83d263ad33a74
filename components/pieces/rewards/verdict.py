"""Reward of a judge that ends with a verdict: whether its last verdict is right."""

from __future__ import annotations

import re

from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory


def verdict_of(text: str, marker: str = "So") -> str | None:
    """The capital letter after the last `marker` that a letter follows; None without one.

    >>> verdict_of("a1+2=3.So A"), verdict_of("So A. Or So B?"), verdict_of("So Ann"), verdict_of("A")
    ('A', 'B', None, None)
    """
    found = re.findall(rf"{re.escape(marker)}\W*([A-Z])\b", text)
    return found[-1] if found else None


@piece(writes=("reward.verdict", "reward.verdict.status"), paper="arXiv:2505.11875")
@each
def verdict(prompt: Prompt, trajectory: Trajectory, *, marker: str = "So") -> float:
    """1 if the last verdict, the capital letter after the last `marker`, is `prompt.answer`, else 0: for
    another verdict, or none (section 3.2 of the paper).
    """
    if prompt.answer is None:
        raise ValueError(f"prompt {prompt.id!r} needs the letter of the right answer as its answer, got none")
    return float(verdict_of(trajectory.text, marker) == prompt.answer)
