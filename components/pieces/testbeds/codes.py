"""Testbed `codes`: codes of several digits, demonstrated by a better and a worse source, for exploration."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share


@piece(paper="arXiv:2306.11816")
def codes(
    *,
    size: Count = 800,
    seed: Natural = 0,
    boxes: Count = 12,
    length: Count = 4,
    expert: Share = 0.5,
    expert_right: Share = 0.8,
    other_right: Share = 0.4,
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion, label, answer}: "Box 7, day 31: code?" with a code of `length` digits
    that depends on the box only. The completion is a demonstration whose digits are right with probability
    `expert_right` (label true, a share `expert` of the rows) or `other_right`, else uniform.

    Shows: exploration under a reward that only the whole code earns (`rewards.exact_answer`): a policy that
    imitates demonstrations of share q has a reward near q^length, the optimum is 1. Does not show:
    generalisation, since held-out prompts ask about the same boxes on other days.
    """
    rng = random.Random(f"codes {seed}")
    right = [
        "".join(str(rng.randrange(1, 10) if place == 0 else rng.randrange(10)) for place in range(length))
        for _ in range(boxes)
    ]
    for row in range(size):
        code, best = right[row % boxes], rng.random() < expert
        share = expert_right if best else other_right
        digits = [digit if rng.random() < share else str(rng.randrange(10)) for digit in code]
        yield {
            "id": f"code-{seed}-{row}",
            "prompt": [{"role": "user", "content": f"Box {row % boxes + 1}, day {row // boxes + 1}: code?"}],
            "completion": [{"role": "assistant", "content": "".join(digits)}],
            "label": best,
            "answer": code,
        }
