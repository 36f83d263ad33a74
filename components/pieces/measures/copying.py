"""Measure `copying`: how much of an answer is copied from its prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.copying import copied, source
from ratchet.components.evaluation.diversity import words
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece()
def copying(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    """Share of an answer's words in runs of five or more that also occur in the prompt's last message, 0 to
    1. Phrases required by the instruction do not count.
    """
    found = []
    for group in groups:
        source_words, answers = words(source(group.prompt)), [words(t.text) for t in group.trajectories]
        found.append(
            [sum(copied(answer, source_words)) / len(answer) if answer else 0.0 for answer in answers]
        )
    return found
