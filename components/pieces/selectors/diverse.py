"""Selector `diverse`: pairs whose texts are unlike each other."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import part
from ratchet.components.recipes.ranges import PositiveShare
from ratchet.components.types import Context, Group


@piece(paper="arXiv:1708.00489")
def diverse(groups: Sequence[Group], ctx: Context, *, share: PositiveShare = 0.5) -> list[Group]:
    """The `share` of groups, rounded up and in their order, that covers the rest best, to be labelled: greedy
    k-centre selection, which adds the group farthest from those selected, beginning with the first. The
    distance of two groups is 1 - Jaccard similarity of their sets of words (prompt and answers); the paper
    uses features of a network.
    """
    import numpy as np

    words = [_words(group) for group in groups]
    column = {word: i for i, word in enumerate(sorted({word for row in words for word in row}))}
    table = np.zeros((len(groups), len(column)), dtype=np.float32)
    for row, group in enumerate(words):
        table[row, [column[word] for word in group]] = 1
    sizes, chosen = table.sum(1), list[int]()
    distance = np.full(len(groups), np.inf)
    for _ in range(math.ceil(part(groups, share))):
        chosen.append(int(distance.argmax()))
        shared = table @ table[chosen[-1]]
        union = np.maximum(sizes + sizes[chosen[-1]] - shared, 1)
        distance = np.minimum(distance, 1 - shared / union)
        distance[chosen] = -1
    ctx.counts["groups like those selected"] += len(groups) - len(chosen)
    return [groups[i] for i in sorted(chosen)]


def _words(group: Group) -> set[str]:
    texts = [message["content"] for message in group.prompt.messages]
    return {
        word
        for text in [*texts, *(one.text for one in group.trajectories)]
        for word in re.findall(r"\w+", text.lower())
    }
