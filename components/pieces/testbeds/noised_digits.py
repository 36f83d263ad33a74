"""Testbed `noised_digits`: chains of images from noise to a handwritten digit, for a denoising policy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.testbeds.digit_images import CODES, Image, images
from ratchet.components.recipes.ranges import Count, Natural

SYMBOLS = 16
"""Symbols of an image, 4x4 of them, with one of 16 values each."""
PORTIONS = {"policy": 900, "first": 425, "second": 425}
"""Images that the policy learns from, and those of two classifiers: the reward and the check on it."""


def portion(name: str) -> list[Image]:
    """The images of one of `PORTIONS`, the same in every process; no image is in two of them."""
    every = images()
    random.Random("noised_digits").shuffle(every)
    start = 0
    for other, count in PORTIONS.items():
        if other == name:
            return every[start : start + count]
        start += count
    raise DataError(f"noised_digits: expected a portion out of {', '.join(PORTIONS)}, got {name!r}")


def is_image(text: str) -> bool:
    """Whether a text is an image: 16 letters from A to P and nothing else."""
    return len(text) == SYMBOLS and set(text) <= set(CODES)


def noised(codes: str, kept: float, rng: random.Random) -> str:
    """One step of the forward process: each symbol stays with probability `kept`, else it is drawn again from
    all 16 values, the old one among them (D3PM's uniform transition, Austin et al. 2021, appendix A.2.1).
    """
    return "".join(code if rng.random() < kept else rng.choice(CODES) for code in codes)


def kept_shares(steps: int) -> list[float]:
    """Probability that a symbol is kept in step t = 1, 2, ..., T of the forward process. A symbol of x_t is
    that of the image with probability 1 - t/T, so x_T is pure noise: step t keeps (T - t) / (T - t + 1).

    >>> kept_shares(4)
    [0.75, 0.6666666666666666, 0.5, 0.0]
    """
    return [(steps - t) / (steps - t + 1) for t in range(1, steps + 1)]


def chain(image: str, steps: int, rng: random.Random) -> list[str]:
    """A sample x_0, x_1, ..., x_T of the forward process that starts at an image."""
    made = [image]
    for kept in kept_shares(steps):
        made.append(noised(made[-1], kept, rng))
    return made


def state(digit: str, left: int) -> str:
    """The text that goes with a noisy image: the wanted digit and the number of steps left."""
    return f"{digit} t{left}"


@piece(paper="arXiv:2107.03006")
def noised_digits(
    *, size: Count = 3600, steps: Count = 3, prompts: Count = 400, test: Count = 100, seed: Natural = 0
) -> Iterator[dict[str, Any]]:
    """Discrete diffusion of images of digits, as a conversation with the environment `denoising`. An image is
    16 letters (`digit_images.codes_of`). The prompt is the wanted digit, the number of steps left and the
    noise x_T: "7 t3 KCPAJMLEBOFNHIDG". Each of the policy's `steps` turns writes the next less noisy image,
    x_(T-1) to x_0; between them stand the digit and the steps left, "7 t2". Read the splits with
    `data.columns: {split: split}`.

    `chains`: `size` rows {id, prompt, completion} of 900 images in turn, samples of the forward process read
    backwards, so that imitation of a turn is the likelihood of x_(t-1) given x_t, t and the digit: the
    D3PM bound up to a constant. `prompts` and `test`: rows {id, prompt, answer} with fresh noise, the digits
    in turn.

    A reverse step is autoregressive over the symbols and sees the chain so far: it can be any joint
    distribution of the 16 symbols, where D3PM draws each on its own given x_t alone. The forward process is a
    Markov chain, so the earlier chain tells nothing more about x_(t-1), and the reverse process that the data
    have is the same. x_T is independent of the image. Among the data are no images of the classifiers that
    score (`portion`).

    Shows: what learning from scores or comparisons of final images does to a policy whose every denoising
    step is an action with a log-probability. Does not show: images of real numbers, Gaussian noise or its
    samplers, text encoders, guidance, or prompts that training never had (all ten digits are in it).
    """
    rng = random.Random(f"noised_digits {seed}")
    shown = portion("policy")
    for number in range(size):
        image = shown[number % len(shown)]
        states = chain(image.codes, steps, rng)
        turns: list[dict[str, str]] = []
        for left in range(steps - 1, -1, -1):
            turns.append({"role": "assistant", "content": states[left]})
            turns.append({"role": "user", "content": state(str(image.digit), left)})
        row = _row(f"chain-{seed}-{number}", "chains", image.digit, steps, states[-1])
        yield {**row, "completion": turns[:-1]}
    for split, count in (("prompts", prompts), ("test", test)):
        for number in range(count):
            noise = "".join(rng.choice(CODES) for _ in range(SYMBOLS))
            digit = number % 10
            row = _row(f"{split}-{seed}-{number}", split, digit, steps, noise)
            yield {**row, "answer": str(digit)}


def _row(name: str, split: str, digit: int, steps: int, noise: str) -> dict[str, Any]:
    content = f"{state(str(digit), steps)} {noise}"
    return {"id": name, "split": split, "prompt": [{"role": "user", "content": content}]}
