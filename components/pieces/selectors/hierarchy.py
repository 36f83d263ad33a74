"""Selector `hierarchy`: preference pairs by an ordered list of signals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.pieces.selectors.pairs import pair
from ratchet.components.types import Context, Group


def preferred(
    first: Mapping[str, float], second: Mapping[str, float], margins: Mapping[str, float]
) -> tuple[int, str]:
    """1, -1 or 0 if the first, the second or neither is preferred, and the deciding signal: the first signal,
    in order, whose values differ by more than its margin.
    """
    for name, margin in margins.items():
        gap = first[name] - second[name]
        if abs(gap) > margin:
            return (1 if gap > 0 else -1), name
    return 0, ""


@piece(reads=("{signals}",), writes=("margin",), compares=True, makes="pairs", paper="arXiv:2309.02632")
def hierarchy(
    groups: Sequence[Group], ctx: Context, *, signals: list, margins: list | None = None
) -> list[Group]:
    """All pairs of a prompt's answers that the signals decide, better one first (HERON): the first
    signal of `signals` that differs by more than its margin decides; a pair that none decides is dropped. A
    margin is `margins` (in standard deviations of the signal over all the answers; default 0 for the first,
    1 for the rest) so that labels do not change with a signal's unit. Counts the pairs that each signal
    decides. `margin` of a pair is the deciding signal's difference.
    """
    factors = margins if margins is not None else [0.0] + [1.0] * (len(signals) - 1)
    if len(factors) != len(signals):
        raise RecipeError(
            f"hierarchy: {len(signals)} signals ({', '.join(signals)}) but {len(factors)} margins; "
            "expected one margin per signal"
        )
    values = [{name: rewards_of(group, name) for name in signals} for group in groups]
    spread = {
        name: factor * statistics.pstdev([v for own in values for v in own[name]] or [0.0])
        for name, factor in zip(signals, factors, strict=True)
    }
    made = []
    for group, own in zip(groups, values, strict=True):
        rows = [{name: own[name][i] for name in signals} for i in range(len(group.trajectories))]
        for i in range(len(rows)):
            for j in range(i + 1, len(rows)):
                sign, name = preferred(rows[i], rows[j], spread)
                ctx.counts[f"pairs decided by {name}" if name else "pairs that no signal decides"] += 1
                if sign:
                    best, worst = (i, j) if sign > 0 else (j, i)
                    made += pair(group, best, worst, own[name], ctx, name)
    return made
