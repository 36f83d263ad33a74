"""Testbed `digit_boxes`: pictures of a digit on a noisy canvas, for a vision-language model that finds it."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.testbeds.digit_images import pixels
from ratchet.components.recipes.ranges import Count, Natural

SIDE, DIGIT = 16, 8
"""Pixels of a side of the canvas, and of a digit."""
WHITE = 255
QUESTION = "Where is the digit?"


def picture(digit: list[int], left: int, top: int, white: int, rng: random.Random) -> str:
    """The data URL of a PNG of SIDE x SIDE grey pixels (0 to 255): noise below 64, and the digit, 64 values
    from 0 to 16 that become 0 to `white`, with its corner at `left`, `top`.
    """
    from PIL import Image

    grey = [rng.randrange(64) for _ in range(SIDE * SIDE)]
    for place, value in enumerate(digit):
        at = (top + place // DIGIT) * SIDE + left + place % DIGIT
        grey[at] = max(grey[at], value * white // 16)
    image = Image.new("L", (SIDE, SIDE))
    image.putdata(grey)
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@piece(paper="arXiv:2503.01785")
def digit_boxes(
    *,
    demonstrations: Count = 1000,
    jitter: Natural = 2,
    shots: Count = 4,
    test: Count = 200,
    seed: Natural = 0,
) -> Iterator[dict[str, Any]]:
    """Pictures of 16x16 pixels with one of scikit-learn's handwritten digits (8x8) at a random place, and the
    question where it is; the answer is its box, "left top right bottom": "3 7 11 15". The picture is a PNG in
    the column `images`. Read the splits with `data.columns: {split: split}`; no digit's image is in two of
    them.

    `pretrain`: `demonstrations` rows {id, prompt, images, completion}, white digits, whose boxes are moved by
    up to `jitter` pixels each way. `few`: `shots` pictures of each of ten digits, half as bright, with the
    exact box as `completion` and `answer`. `test`: further pictures like those of `few`, rows {id, prompt,
    images, answer}.

    Shows: what few faint pictures with exact boxes do to a policy that finds bright digits roughly.
    Does not show: several objects, names of objects, photographs, or an encoder that was pre-trained.
    """
    rng, every = random.Random(f"digit_boxes {seed}"), pixels()
    need = demonstrations + 10 * shots + test
    if need > len(every):
        raise DataError(f"digit_boxes: expected at most {len(every)} pictures in all, got {need}")
    rng.shuffle(every)
    kinds = [[values for values, digit in every if digit == kind] for kind in range(10)]
    counts = {"few": 10 * shots, "test": test, "pretrain": demonstrations}
    for split, count in counts.items():
        for number in range(count):
            kind = next(kinds[(number + i) % 10] for i in range(10) if kinds[(number + i) % 10])
            left, top = (rng.randrange(SIDE - DIGIT + 1) for _ in range(2))
            rough = split == "pretrain"
            row = {
                "id": f"{split}-{seed}-{number}",
                "split": split,
                "images": [picture(kind.pop(), left, top, WHITE if rough else WHITE // 2, rng)],
                "prompt": [{"role": "user", "content": f"<image> {QUESTION}"}],
            }
            if rough:
                left, top = (_moved(place, jitter, rng) for place in (left, top))
            box = f"{left} {top} {left + DIGIT} {top + DIGIT}"
            completion = [{"role": "assistant", "content": box}]
            if split != "pretrain":
                row["answer"] = box
            yield row if split == "test" else {**row, "completion": completion}


def _moved(place: int, jitter: int, rng: random.Random) -> int:
    return min(max(place + rng.randint(-jitter, jitter), 0), SIDE - DIGIT)
