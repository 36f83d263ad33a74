"""Selector `informative`: groups whose advantages are large enough to matter."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, NotNegative
from ratchet.components.types import Context, Group


@piece(reads=("advantages",), paper="arXiv:2502.01600")
def informative(
    groups: Sequence[Group], ctx: Context, *, least: NotNegative = 0.01, multiple_of: Count = 1
) -> list[Group]:
    """The groups with an advantage of `least` or more in absolute value, and of the others as many as fill
    their number up to a multiple of `multiple_of`, those with the largest advantages first (LOOP's released
    code, which fills up to the number of ranks). The order stays.

    If `multiple_of` is `fit.batch`, all batches have as many groups as without the selector, so that the
    divisor of `row_mean` is a constant and few informative episodes make a small step: leaving out groups of
    zero advantages does not change the gradient, as it does with `drop_constant`. Groups are kept whole.
    """
    size = [_largest(group) for group in groups]
    kept = [i for i, value in enumerate(size) if value >= least]
    rest = sorted((i for i, value in enumerate(size) if value < least), key=lambda i: -size[i])
    kept += rest[: -len(kept) % multiple_of]
    ctx.counts["groups of small advantages"] += len(groups) - len(kept)
    return [groups[i] for i in sorted(kept)]


def _largest(group: Group) -> float:
    """The largest absolute advantage of a group, whose advantages are numbers or lists over steps."""
    values = [a if isinstance(a, Sequence) else [a] for a in group.columns["advantages"]]
    return max((abs(value) for row in values for value in row), default=0.0)
