"""All preference pairs of a prompt as one element of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.data import groups as data
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece(paper="arXiv:2203.02155")
def by_prompt(groups: Sequence[Group], ctx: Context) -> list[Group]:
    """All pairs of a prompt in one group of two rows a pair, chosen first. The prompt is read once for all of them, and `fit.batch` counts
    prompts; each pair keeps the weight it had."""
    return data.by_prompt(groups)
