"""Testbed `gaussian_digits`: images of digits for a diffusion model of real-valued pixels."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.testbeds.digit_images import pixels
from ratchet.components.recipes.ranges import Count, Natural

PORTIONS = {"policy": 900, "first": 425, "second": 425}
"""Images that the policy learns from, and those of two classifiers: the reward and the check on it."""


def portion(name: str) -> list[tuple[list[int], int]]:
    """The images (64 pixels from 0 to 16, digit) of one of `PORTIONS`, the same in every process; no image is
    in two of them.
    """
    every = pixels()
    random.Random("gaussian_digits").shuffle(every)
    start = 0
    for other, count in PORTIONS.items():
        if other == name:
            return every[start : start + count]
        start += count
    raise DataError(f"gaussian_digits: expected a portion out of {', '.join(PORTIONS)}, got {name!r}")


@piece(paper="arXiv:2305.13301")
def gaussian_digits(
    *, prompts: Count = 400, test: Count = 200, seed: Natural = 0
) -> Iterator[dict[str, Any]]:
    """Prompts of the environment `ddpm`, "Draw a 7 from noise
    test-0-17.", whose answer is the digit. Read the splits with
    `data.columns: {split: split}`.

    `shown`: 900 rows {id, prompt, answer, meta} with an image of scikit-learn's digits in `meta.image`, 64
    pixels from 0 to 16, for the rollout `control.expert`. `prompts`, `test`: rows {id, prompt, answer}, the
    digits in turn; the id of a row is the noise that its samples start from. Among the images are none of the
    classifiers that score (`portion`).

    Shows: what learning from scores of final images does to a diffusion model whose every denoising step is a
    Gaussian action with a log-probability. Does not show: large images, convolutional or attention networks,
    text encoders, classifier-free guidance, or prompts that training never had (all ten digits are in it).
    """
    for number, (image, digit) in enumerate(portion("policy")):
        yield {**_row(f"shown-{number}", "shown", digit), "meta": {"image": image}}
    for split, count in (("prompts", prompts), ("test", test)):
        for number in range(count):
            yield _row(f"{split}-{seed}-{number}", split, number % 10)


def _row(name: str, split: str, digit: int) -> dict[str, Any]:
    prompt = [{"role": "user", "content": f"Draw a {digit} from noise {name}."}]
    return {"id": name, "split": split, "prompt": prompt, "answer": str(digit)}
