"""How much of an answer is copied from its prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.copying import copied, source
from ratchet.components.evaluation.diversity import words
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece()
def copying(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    """Share of the words of an answer in runs of five or more that the prompt's last message has too, 0 to 1. Phrases that
    an instruction demands are left out."""
    found = []
    for group in groups:
        asked, answers = words(source(group.prompt)), [words(t.text) for t in group.trajectories]
        found.append([sum(copied(said, asked)) / len(said) if said else 0.0 for said in answers])
    return found
