"""Measure `coverage`: how many of the right answers a set of answers has."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.accepted import accepted_answers
from ratchet.components.types import Context, Group


@piece()
def coverage(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    """Number of different right answers (`accepted` in the prompt's meta) among the answers to a prompt,
    divided by the most there could be, the smaller of the numbers of answers and of right ones. It falls with
    wrong answers and with repeated ones. Each answer has the number of its set; it needs several answers per
    prompt (`evaluate.responses_per_prompt`).
    """
    made = []
    for group in groups:
        right = set(accepted_answers(group))
        found = {path.text.strip() for path in group.trajectories} & right
        share = len(found) / max(1, min(len(right), len(group.trajectories)))
        made.append([share] * len(group.trajectories))
    return made
