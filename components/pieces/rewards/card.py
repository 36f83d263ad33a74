"""Rewards of an answer to the testbed `fact_cards`: the share of right digits, and the fillers."""

from __future__ import annotations

import re

from ratchet.components.piece import each, piece
from ratchet.components.pieces.testbeds.fact_cards import FILLER, LABELS
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.card", "reward.card.status"), paper="arXiv:2409.00162")
@each
def card(prompt: Prompt, trajectory: Trajectory) -> float:
    """Share of the digits of `prompt.answer` that the answer gives after their labels a, b, c and d, 0 to 1.
    A label that occurs twice, or not at all, is wrong.
    """
    if not re.fullmatch(rf"\d{{{len(LABELS)}}}", prompt.answer or ""):
        raise ValueError(f"prompt {prompt.id!r} needs four digits as its answer, got {prompt.answer!r}")
    given = [re.findall(rf"(?<![a-z]){label}(\d)", trajectory.text) for label in LABELS]
    return sum(own == [digit] for own, digit in zip(given, prompt.answer or "", strict=True)) / len(LABELS)


@piece(writes=("reward.fillers", "reward.fillers.status"), paper="arXiv:2409.00162")
@each
def fillers(prompt: Prompt, trajectory: Trajectory) -> float:
    """Number of fillers in the answer; 2 on average in the demonstrations."""
    return float(trajectory.text.count(FILLER))
