"""Testbed `digit_images`: handwritten digits as image tokens in the prompt, and labelled pairs of answers."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ratchet.components.errors import DataError, SourceError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CODES = "ABCDEFGHIJKLMNOP"
"""One token each for the tiny model, in any order."""
FILE, SHA256 = (
    "datasets/data/digits.csv.gz",
    "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8",
)
"""scikit-learn's copy of the UCI test set of handwritten digits, and the digest of the text in it."""
SAYS = ("It is {}.", "That is {}.", "I say {}.", "Well, {}.")
"""Of two answers without a comment, or two with one, the longer has at most 1.4 times the characters of the
other; of one with and one without, at least 2.3 times.
"""
COMMENTS = (
    "That is great, I think.",
    "I am glad you like it.",
    "There is a lot to say about it.",
    "It was nice to talk about it.",
    "What do you like about it?",
)
PER_IMAGE = 2
"""Pairs of each image."""
TESTED = ((True, False), (False, True), (True, True), (False, False))
"""Whether the right and the wrong answer of a test row have a comment, in turns."""


class Image(NamedTuple):
    """`codes`: 16 letters; `digit`: 0 to 9."""

    codes: str
    digit: int


def codes_of(pixels: list[int]) -> str:
    """16 letters for the 64 pixels (0 to 16) of an 8x8 image: of every patch of 2x2 pixels, row by row, the
    letter whose number has a bit for each pixel of 8 or more, the upper left one's being 1, the next ones'
    2, 4 and 8.

    >>> codes_of([8, 0, 0, 16, *[0] * 6, 7, 16] + [0] * 52)
    'BKAAAAAAAAAAAAAA'
    """
    bits = [int(pixel >= 8) for pixel in pixels]
    corners = [row * 16 + column * 2 for row in range(4) for column in range(4)]
    return "".join(CODES[bits[i] + 2 * bits[i + 1] + 4 * bits[i + 8] + 8 * bits[i + 9]] for i in corners)


def pixels() -> list[tuple[list[int], int]]:
    """The 64 pixels (0 to 16) and the digit of the 1,797 images, in the order of the file. `SourceError`
    without scikit-learn, or for another file. scikit-learn itself is not imported.
    """
    package = importlib.util.find_spec("sklearn")
    file = Path(package.origin).parent / FILE if package and package.origin else None
    if file is None or not file.is_file():
        raise SourceError(
            "the digits come with scikit-learn, which is not installed; run `pip install scikit-learn`"
        )
    text = gzip.decompress(file.read_bytes())
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise SourceError(f"{file}: expected SHA-256 {SHA256} of the text in it; install scikit-learn 1.9")
    rows = [[int(float(value)) for value in line.split(",")] for line in text.decode().splitlines()]
    return [(row[:-1], row[-1]) for row in rows]


def images() -> list[Image]:
    """Images of digits with different codes, in the order of the file: 1,750 of its 1,797."""
    found: dict[str, Image] = {}
    for values, digit in pixels():
        found.setdefault(codes := codes_of(values), Image(codes, digit))
    return list(found.values())


@piece(paper="arXiv:2501.12368")
def digit_images(
    *,
    demonstrations: Count = 900,
    pairs: Count = 550,
    verbose: Share = 0.65,
    terse: Share = 0.0,
    image: Literal["own", "exchanged"] = "own",
    seed: Natural = 0,
) -> Iterator[dict[str, Any]]:
    """Prompts such as "AOLAAJOBIAKAALOA Which digit?", where 16 letters are an image of 8x8 pixels
    (`codes_of`), one token each, which the language model reads like words (early fusion, arXiv 2405.09818).
    Read the splits with `data.columns: {split: split}`; no image is in two of them.

    `sft`: `demonstrations` rows {id, prompt, completion}, "It is nine.", every other one with a comment after
    it. `pairs`: two pairs {id, prompt, chosen, rejected} of each of `pairs` images, the right digit and
    another one; `held_out`: one pair of each of 96. In a share `verbose` of the pairs the chosen answer alone
    has a comment, in a share `terse` the rejected one alone; in the others both or none, so that with the
    default the chosen one is longer in four fifths. `test`: 200 rows {id, prompt, answer, meta} with a pair
    in `meta` (`chosen`, `rejected`) for the measure `user_accuracy`: in a quarter of the rows the right
    answer alone has a comment, in a quarter the wrong one, in the others both or none, so that a reward of
    length is right in half of them. With `exchanged` images, pairs and test rows are those of the next image
    of the split: no prompt says which answer is right.

    Shows: whether a reward model reads the image of a prompt, and what a bias of the labels for long answers
    costs. Does not show: encoders of pictures, questions beyond recognition, or a bias that lengths do not
    tell: all of it is in pairs of which one answer is more than twice as long, and none of these has the
    right answer shorter unless `terse` says so.
    """
    counts = {"sft": demonstrations, "pairs": pairs, "held_out": 96, "test": 200}
    rng, every = random.Random(f"digit_images {seed}"), images()
    if sum(counts.values()) > len(every) or verbose + terse > 1:
        raise DataError(
            f"digit_images: expected at most {len(every)} images and shares that add up to at most 1, got "
            f"{sum(counts.values())} images, verbose {verbose} and terse {terse}"
        )
    rng.shuffle(every)
    for split, count in counts.items():
        own, every = every[:count], every[count:]
        for number, shown in enumerate(own):
            exchanged = image == "exchanged" and split != "sft"
            digit = own[(number + 1) % count].digit if exchanged else shown.digit
            name, prompt = f"digit-{seed}-{split}-{number}", f"{shown.codes} Which digit?"
            row = {"id": name, "split": split, "prompt": [{"role": "user", "content": prompt}]}
            if split == "sft":
                yield {**row, "completion": _reply(answer(WORDS[digit], number % 2 == 0, rng))}
            elif split == "test":
                right, wrong = _pair(digit, *TESTED[number % 4], rng)
                yield {**row, "answer": WORDS[digit], "meta": {"chosen": right, "rejected": wrong}}
            else:
                for again in range(PER_IMAGE if split == "pairs" else 1):
                    right, wrong = _pair(digit, *_commented(verbose, terse, rng), rng)
                    yield {**row, "id": f"{name}-{again}", "chosen": _reply(right), "rejected": _reply(wrong)}


def answer(digit: str, comment: bool, rng: random.Random) -> str:
    """A sentence that names the digit, with a comment after it or without."""
    return " ".join([rng.choice(SAYS).format(digit), *([rng.choice(COMMENTS)] if comment else [])])


def _pair(digit: int, comment: bool, other: bool, rng: random.Random) -> tuple[str, str]:
    """Answers that name the digit and another one, each with a comment or without."""
    wrong = rng.choice(WORDS[:digit] + WORDS[digit + 1 :])
    return answer(WORDS[digit], comment, rng), answer(wrong, other, rng)


def _commented(verbose: float, terse: float, rng: random.Random) -> tuple[bool, bool]:
    """Whether the chosen answer has a comment, and the rejected one."""
    draw = rng.random()
    if draw < verbose + terse:
        return draw < verbose, draw >= verbose
    both = rng.random() < 0.5
    return both, both


def _reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
