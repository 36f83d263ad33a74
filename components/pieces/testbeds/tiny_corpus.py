"""Testbed `tiny_corpus`: dialogues of the tiny language, for imitation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.data.tiny_language import NAMES
from ratchet.components.data.tiny_language import question as ask
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural


@piece()
def tiny_corpus(*, size: Count = 2000, seed: Natural = 0, turns: Count = 2) -> Iterator[dict[str, Any]]:
    """Short dialogues {id, messages}: greetings followed by up to `turns` questions of the tiny language; a
    third starts with a system message.

    Shows: whether a model learns to answer by imitation, within seconds, and that it ends its answers.
    Does not show: generalisation. The grammar has some 120 questions with one right answer each, so held-out
    questions were mostly seen in training.
    """
    rng = random.Random(f"tiny_corpus {seed}")
    for number in range(size):
        messages = []
        name = rng.choice(NAMES)

        if rng.random() < 0.3:
            messages += [
                {"role": "user", "content": f"Hello, I am {name}."},
                {"role": "assistant", "content": f"Hello {name}, nice to meet you."},
            ]
        for _ in range(rng.randint(1, turns)):
            _, question, answer, _ = ask(rng)
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        if rng.random() < 0.33:
            messages.insert(0, {"role": "system", "content": "Answer in one short sentence."})
        yield {"id": f"tiny-{seed}-{number}", "messages": messages}
