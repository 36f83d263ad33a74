"""Testbed `two_tasks`: two tasks on digits, of which the second is trained alone, for forgetting."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@piece(paper="arXiv:2309.10105")
def two_tasks(
    *, size: Count = 3000, narrow: Count = 800, held_out: Count = 96, seed: Natural = 0
) -> Iterator[dict[str, Any]]:
    """Conversations {id, prompt, completion, split}: "first of 3 8 1 5" is 3 and "last of 3 8 1 5" is 5, with
    digits or with their names, each prompt once. The split `train` has both tasks in both alphabets, `narrow`
    the last of four digits alone; the rows of `test` {id, prompt, answer, split} ask for the first.

    Shows: what fine-tuning on one task does to another that a model could do, and whether it can still do it
    when it is asked in another alphabet. Does not show: forgetting of facts, or of abilities that share no
    form of prompt.
    """
    rng, taken = random.Random(f"two_tasks {seed}"), set[str]()
    splits = ["train"] * size + ["narrow"] * narrow + ["test"] * held_out
    for number, split in enumerate(splits):
        text = ""
        while not text or text in taken:
            task = {"train": rng.choice(("first", "last")), "narrow": "last", "test": "first"}[split]
            named = split == "train" and rng.random() < 0.5
            digits = [WORDS[n] if named else str(n) for n in rng.sample(range(10), 4)]
            text = f"{task} of {' '.join(digits)}"
        taken.add(text)
        answer = digits[0 if task == "first" else -1]
        completion = [{"role": "assistant", "content": answer}]
        yield {
            "id": f"two-tasks-{seed}-{number}",
            "prompt": [{"role": "user", "content": text}],
            "split": split,
            **({"answer": answer} if split == "test" else {"completion": completion}),
        }
