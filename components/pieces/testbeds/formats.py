"""Testbed `formats`: sums answered in two formats of different accuracy, for what reinforcement amplifies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.data.tiny_language import NAMES
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share


@piece(paper="arXiv:2504.07912")
def formats(
    *,
    size: Count = 1000,
    seed: Natural = 0,
    exact: Share = 0.3,
    exact_right: Share = 0.9,
    other_right: Share = 0.5,
) -> Iterator[dict[str, Any]]:
    """Answered sums {id, prompt, completion, answer}: a share `exact` of the rows has the format "7,
    exactly." and is right with probability `exact_right`; the others have the format "about 7." and are right
    with probability `other_right`, else 1 or 2 off. At most one row for each of 24 speakers and 100 sums.

    Shows: whether learning from right answers alone moves a policy, fine-tuned on both, to the format that
    was more accurate, though no reward reads the format. Does not show: which format wins at another scale,
    or formats of different length; held-out prompts ask the same 100 sums of other speakers.
    """
    rng = random.Random(f"formats {seed}")
    speakers = [f"{greeting}, I am {name}." for greeting in ("Hello", "Hi", "Hey", "Well") for name in NAMES]
    sums = [(speaker, a, b) for speaker in speakers for a in range(10) for b in range(10)]
    for row, (speaker, a, b) in enumerate(rng.sample(sums, min(size, len(sums)))):
        first = rng.random() < exact
        right = rng.random() < (exact_right if first else other_right)
        result = a + b if right else a + b + rng.choice((-2, -1, 1, 2))
        yield {
            "id": f"format-{seed}-{row}",
            "prompt": [{"role": "user", "content": f"{speaker} What is {a} + {b}?"}],
            "completion": [
                {"role": "assistant", "content": f"{result}, exactly." if first else f"about {result}."}
            ],
            "answer": str(a + b),
        }
