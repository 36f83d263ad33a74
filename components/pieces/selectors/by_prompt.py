"""Selector `by_prompt`: all preference pairs of a prompt as one batch element."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.data import groups as data
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group

ALL_PAIRS = True
"""A group has all pairs of its prompt; read by the estimate of memory."""


@piece(paper="arXiv:2203.02155")
def by_prompt(groups: Sequence[Group], ctx: Context) -> list[Group]:
    """All pairs of a prompt as one group with two rows per pair, chosen first. The prompt is processed once,
    and `fit.batch` counts prompts; each pair keeps its weight.
    """
    return data.by_prompt(groups)
