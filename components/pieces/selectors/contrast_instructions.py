"""Selector `contrast_instructions`: pairs whose rejected answer is right for a similar prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import bare, drawn
from ratchet.components.pieces.selectors.similar import most_similar
from ratchet.components.recipes.ranges import Share
from ratchet.components.types import Context, Group


@piece(makes="pairs", paper="arXiv:2309.16155")
def contrast_instructions(groups: Sequence[Group], ctx: Context, *, share: Share = 0.5) -> list[Group]:
    """Preference pairs in which a `share`, rounded, has another rejected answer: the chosen answer of the
    most similar prompt (`most_similar`). Only the prompt distinguishes the two. The number of pairs, and of
    labels, is unchanged; which pairs change is a function of the seed and their number. Columns are dropped.
    """
    questions = [group.prompt.messages[-1]["content"] for group in groups]
    others = most_similar(questions, [group.trajectories[0].text for group in groups])
    order = drawn(range(len(groups)), f"{ctx.seed}/contrast/{len(groups)}")
    wanted = set(order[: round(share * len(groups))])
    changed = []
    for i, (group, other) in enumerate(zip(groups, others, strict=True)):
        rejected = group.trajectories[1]
        if i in wanted and other is not None:
            rejected = bare(groups[other].trajectories[0])
            ctx.counts["contrast pairs"] += 1
        changed.append(Group(group.prompt, (bare(group.trajectories[0]), bare(rejected))))
    return changed
