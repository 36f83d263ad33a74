"""Helper to find similar prompts with different answers. Not a piece."""

from __future__ import annotations

import re
from collections.abc import Sequence


def most_similar(questions: Sequence[str], answers: Sequence[str]) -> list[int | None]:
    """For each question the index of the most similar other one, by the Jaccard index of their words, whose
    answer differs; the first among equals, and None if there is none. It stands for the nearest neighbour by
    sentence embeddings of Contrast Instructions (arXiv 2309.16155, section 3).

    >>> most_similar(["what colour is snow", "what colour is coal", "who sings"], ["white", "black", "birds"])
    [1, 0, 0]
    """
    words = [frozenset(re.findall(r"\w+", text.lower())) for text in questions]
    known: dict[tuple[frozenset[str], str], int | None] = {}
    for own, answer in zip(words, answers, strict=True):
        if (own, answer) in known:
            continue
        others = [
            (-len(own & other) / max(1, len(own | other)), j)
            for j, (other, text) in enumerate(zip(words, answers, strict=True))
            if text != answer and other != own
        ]
        known[own, answer] = min(others)[1] if others else None
    return [known[key] for key in zip(words, answers, strict=True)]
