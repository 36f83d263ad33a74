"""Repetition penalty on n-grams."""

from __future__ import annotations

from ratchet.components.piece import each, piece
from ratchet.components.recipes.ranges import Count, NotNegative
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.repetition", "reward.repetition.status"), paper="arXiv:2502.03373")
@each
def repetition(prompt: Prompt, trajectory: Trajectory, *, n: Count = 3, largest: NotNegative = 1.0) -> float:
    """-largest x (1 - distinct n-grams / n-grams) over the answer's tokens (or words, if it has no tokens); 0
    if shorter than n.
    """
    tokens = [
        t for t, chosen in zip(trajectory.inputs.get("tokens", ()), trajectory.mask, strict=False) if chosen
    ]
    tokens = tokens or trajectory.text.lower().split()
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return -largest * (1 - len(set(grams)) / len(grams)) if grams else 0.0
