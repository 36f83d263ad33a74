"""Testbed `code_pairs`: preference pairs about codes, where an answer may be right for another question."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural


@piece(paper="arXiv:2309.16155")
def code_pairs(
    *,
    size: Count = 600,
    validation: Count = 96,
    held_out: Count = 192,
    seed: Natural = 0,
    boxes: Count = 12,
    length: Count = 4,
) -> Iterator[dict[str, Any]]:
    """Rows {id, prompt, chosen, rejected, split}: "Box 7, day 131: code?" with the code of `length` digits
    that the box has on every day, against digits drawn at random that are the code of no box. Read the splits
    with `data.columns: {split: split}`: `size` rows of `train`, and those of `validation` and `held_out`. Two
    boxes are asked about on a day, so the question most similar to one is that about the day's other box.

    Shows: whether a reward model reads the prompt. That an answer is the code of some box decides every pair,
    and the prompt is needed only where both answers are codes (`consistency`, `contrast_instructions`).
    Does not show: generalisation to other boxes, or prompts that differ in more than a word.
    """
    if not 2 <= boxes < 10**length:
        raise DataError(
            f"code_pairs: expected 2 boxes or more and fewer than the {10**length} codes of {length} digits, "
            f"got {boxes}"
        )
    rng = random.Random(f"code_pairs {seed}")
    codes = [f"{code:0{length}d}" for code in rng.sample(range(10**length), boxes)]
    number, day = 0, 100
    for split, rows in (("train", size), ("validation", validation), ("held_out", held_out)):
        for place in range(rows):
            if place % 2 == 0:
                asked, day = rng.sample(range(boxes), 2), day + 1
            box = asked[place % 2]
            wrong = codes[box]
            while wrong in codes:
                wrong = "".join(str(rng.randrange(10)) for _ in range(length))
            yield {
                "id": f"code-pair-{seed}-{number}",
                "prompt": [{"role": "user", "content": f"Box {box + 1}, day {day}: code?"}],
                "chosen": [{"role": "assistant", "content": codes[box]}],
                "rejected": [{"role": "assistant", "content": wrong}],
                "split": split,
            }
            number += 1
