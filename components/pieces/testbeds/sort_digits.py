"""Testbed `sort_digits`: digits to sort, with demonstrations of two attempts, for self-correction."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share


@piece(paper="arXiv:2409.12917")
def sort_digits(
    *,
    size: Count = 2000,
    seed: Natural = 0,
    digits: Count = 4,
    first: Share = 0.5,
    second: Share = 0.5,
    feedback: str = "Check.",
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion, answer}: "Sort 4139" with the answer "1349". The completion is a
    demonstration of two attempts with `feedback` in between, which says nothing about the first. An attempt
    is right with probability `first` and `second`, independently; a wrong one has two neighbours exchanged.

    No two rows have equal prompts.

    Shows: whether a method learns to correct its own errors, which can be seen in the attempt and the prompt
    alone. A policy that imitates the demonstrations has a gain of `second` - `first` at most. Does not show:
    errors of reasoning, or feedback with information.
    """
    if size > 9**digits:
        raise DataError(f"sort_digits: size is {size}, but {digits} digits have {9**digits} orders; lower it")
    rng = random.Random(f"sort {seed}")
    for number, code in enumerate(rng.sample(range(9**digits), size)):
        drawn = [code // 9**i % 9 + 1 for i in range(digits)]
        answer = sorted(drawn)
        attempts = [
            answer if rng.random() < chance else _exchanged(answer, rng) for chance in (first, second)
        ]
        yield {
            "id": f"sort-{seed}-{number}",
            "prompt": [{"role": "user", "content": f"Sort {''.join(map(str, drawn))}"}],
            "completion": [
                {"role": "assistant", "content": "".join(map(str, attempts[0]))},
                {"role": "user", "content": feedback},
                {"role": "assistant", "content": "".join(map(str, attempts[1]))},
            ],
            "answer": "".join(map(str, answer)),
        }


def _exchanged(values: list[int], rng: random.Random) -> list[int]:
    """The values with two unequal neighbours exchanged; unchanged if all are equal."""
    places = [i for i in range(len(values) - 1) if values[i] != values[i + 1]]
    if not places:
        return values
    i = rng.choice(places)
    return [*values[:i], values[i + 1], values[i], *values[i + 2 :]]
