"""Testbed `styled_sums`: sums answered in a given style, for the transfer of a style between models."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural


@piece(paper="arXiv:2310.12962")
def styled_sums(
    *, size: Count = 800, seed: Natural = 0, largest: Count = 9, style: str = ", thank you."
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion, answer}: a sum of a number up to `largest` and a digit in one of two
    wordings, answered rightly and in a `style` that the tiny model does not have. `rewards.exact_answer`
    reads the number, `rewards.format` the style.

    Shows: whether style and knowledge come together from different models: a few rows teach the style, while
    the share of right sums depends on pre-training. Does not show: knowledge other than sums; a small model
    learns some of the sums from the rows too.
    """
    rng = random.Random(f"styled_sums {seed}")
    sums = [(a, b, form) for a in range(largest + 1) for b in range(10) for form in range(2)]
    for row, (a, b, form) in enumerate(rng.sample(sums, min(size, len(sums)))):
        yield {
            "id": f"styled-sum-{seed}-{row}",
            "prompt": [{"role": "user", "content": (f"What is {a} + {b}?", f"{a} + {b} =")[form]}],
            "completion": [{"role": "assistant", "content": f"{a + b}{style}"}],
            "answer": str(a + b),
        }
