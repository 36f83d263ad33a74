"""Testbed `digit_classes`: few labelled images of some classes, for a policy that knows all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.testbeds.digit_images import CODES, WORDS, Image, images
from ratchet.components.recipes.ranges import Count, Natural, Share

HALVES = {"base": range(5), "new": range(5, 10)}
"""Digits of the classes with labelled images, and of those without."""
ORDERS = 16
"""Prompts of each labelled image, with the classes in different orders."""


def ink(codes: str) -> tuple[int, int]:
    """Quarters of the 32 pixels of the upper half of an image that are inked, and of the lower half, 0 to 8,
    rounded down.

    >>> ink("PAAAAAAABAAAAACP")
    (1, 1)
    """
    bits = [CODES.index(code).bit_count() for code in codes]
    return sum(bits[:8]) // 4, sum(bits[8:]) // 4


@piece(paper="arXiv:2503.16188")
def digit_classes(
    *,
    demonstrations: Count = 1200,
    shots: Count = 4,
    misnamed: Share = 0.1,
    bare: Share = 0.3,
    seed: Natural = 0,
) -> Iterator[dict[str, Any]]:
    """Images of digits as letters (`digit_images`) with five classes to choose from, in any order:
    "AOLAAJOBIAKAALOA Which of nine, six, seven, five, eight?" Read the splits with
    `data.columns: {split: split}`; no image is in two of them.

    `pretrain`: `demonstrations` rows {id, prompt, completion} of all digits, each among four others. A share
    `misnamed` of the answers is another one of the classes; a share `bare` is the word alone, the others are
    "<think>5 4</think><answer>nine</answer>", with the `ink` of both halves. `few`: `shots` images of each
    digit from 0 to 4, in 16 orders of these classes, rows {id, prompt, completion, answer, meta} whose
    completion is the word. `test`: 100 further images of these digits, and 100 of those from 5 to 9 among
    these classes, rows {id, prompt, answer, meta}. `meta["half"]` is `base` or `new`.

    Shows: what few labelled images of some classes do to the accuracy on these and on other classes that the
    policy knows already. Does not show: classes that pre-training never saw, thoughts that help (ink tells
    little), or encoders of pictures.
    """
    rng = random.Random(f"digit_classes {seed}")
    every = images()
    rng.shuffle(every)
    kinds = [[one for one in every if one.digit == digit] for digit in range(10)]
    need = shots + 20 + -(-demonstrations // 10)
    if any(len(kind) < need for kind in kinds):
        raise DataError(
            f"digit_classes: expected at most {min(map(len, kinds))} images of a digit, got {need}: {shots} "
            "shots, 20 for the test, a tenth of the demonstrations; lower one of them"
        )
    for number in range(demonstrations):
        shown = kinds[number % 10].pop()
        others = rng.sample([d for d in range(10) if d != shown.digit], 4)
        label = rng.choice(others) if rng.random() < misnamed else shown.digit
        text = WORDS[label]
        if rng.random() >= bare:
            text = "<think>{} {}</think><answer>{}</answer>".format(*ink(shown.codes), text)
        row = _row(f"pretrain-{seed}-{number}", "pretrain", shown, [shown.digit, *others], rng)
        yield {**row, "completion": _reply(text)}
    for half, digits in HALVES.items():
        for digit in digits:
            for number in range(20):
                row = _row(f"test-{seed}-{digit}-{number}", "test", kinds[digit].pop(), [*digits], rng)
                yield {**row, "answer": WORDS[digit], "meta": {"half": half}}
    for digit in HALVES["base"]:
        for number in range(shots):
            shown, orders = kinds[digit].pop(), set[str]()
            while len(orders) < ORDERS:
                name = f"few-{seed}-{digit}-{number}-{len(orders)}"
                row = _row(name, "few", shown, [*HALVES["base"]], rng)
                if (text := row["prompt"][0]["content"]) not in orders:
                    orders.add(text)
                    word = WORDS[digit]
                    yield {**row, "completion": _reply(word), "answer": word, "meta": {"half": "base"}}


def _row(name: str, split: str, shown: Image, classes: list[int], rng: random.Random) -> dict[str, Any]:
    listed = ", ".join(WORDS[digit] for digit in rng.sample(classes, len(classes)))
    prompt = f"{shown.codes} Which of {listed}?"
    return {"id": name, "split": split, "prompt": [{"role": "user", "content": prompt}]}


def _reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
