"""Testbed `tiny_sources`: sums answered by an expert and by a worse source, for data of mixed quality."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.data.tiny_language import NAMES
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share


@piece()
def tiny_sources(
    *, size: Count = 1000, seed: Natural = 0, expert: Share = 0.1, wrong: Share = 0.4
) -> Iterator[dict[str, Any]]:
    """Answered sums {id, prompt, completion, label, answer}, label true: by the expert. A share `expert` has
    the right answer; of the others a share `wrong` is 1 or 2 off. One row at most for each of 24 speakers and
    100 sums.

    Shows: whether a method that is told the source learns more from the expert than from the mixture.
    Does not show: generalisation to new sums. Held-out prompts ask the same 100 sums of other speakers, and
    most answers of the worse source are right.
    """
    rng = random.Random(f"tiny_sources {seed}")
    speakers = [f"{greeting}, I am {name}." for greeting in ("Hello", "Hi", "Hey", "Well") for name in NAMES]
    asked = [(speaker, a, b) for speaker in speakers for a in range(10) for b in range(10)]
    for number, (speaker, a, b) in enumerate(rng.sample(asked, min(size, len(asked)))):
        best = rng.random() < expert
        off = 0 if best or rng.random() >= wrong else rng.choice((-2, -1, 1, 2))
        yield {
            "id": f"tiny-source-{seed}-{number}",
            "prompt": [{"role": "user", "content": f"{speaker} What is {a} + {b}?"}],
            "completion": [{"role": "assistant", "content": f"{a + b + off}."}],
            "label": best,
            "answer": str(a + b),
        }
