"""Testbed `guess`: hidden numbers that only further attempts can find, for methods of several turns."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share


@piece(paper="arXiv:2507.14295")
def guess(
    *,
    size: Count = 1000,
    seed: Natural = 0,
    numbers: Count = 3,
    attempts: Count = 3,
    repeat: Share = 0.5,
    feedback: str = "No.",
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, completion, answer}: "Guess number 17." with a hidden `answer`, uniform over 1 to
    `numbers` (at most 9) and independent of the prompt. The completion is a demonstration of `attempts` with
    `feedback` in between, the sentence of the environment `retry`: a further attempt is the last one with
    probability `repeat`, else uniform. A policy fine-tuned on these is as stubborn.

    Shows: whether a method learns from the conversation. With K numbers, T <= K attempts and r = `repeat`,
    the demonstrator finds 1 - (1 - 1/K) (1 - (1 - r)/K)^(T - 1) of the answers, distinct attempts T/K, which
    is the optimum; the first attempt finds 1/K under any policy. The optimum of `rewards.attempts` is the sum
    of decay^k / K over k < T. Does not show: reasoning about the question, feedback with information.
    """
    rng = random.Random(f"guess {seed}")
    for number in range(size):
        turns: list[dict[str, str]] = []
        last = ""
        for _ in range(attempts):
            last = last if last and rng.random() < repeat else str(rng.randint(1, numbers))
            turns.append({"role": "assistant", "content": last})
            turns.append({"role": "user", "content": feedback})
        yield {
            "id": f"guess-{seed}-{number}",
            "prompt": [{"role": "user", "content": f"Guess number {number}."}],
            "completion": turns[:-1],
            "answer": str(rng.randint(1, numbers)),
        }
