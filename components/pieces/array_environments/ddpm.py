"""Environment `ddpm`: sampling of an image by denoising, one action a step."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.protocols import ArrayStep
from ratchet.components.recipes.ranges import Count, Positive
from ratchet.components.types import Prompt

PIXELS, SIDE, CLASSES = 64, 8, 10
SHADES = " .:-=+*#%@"


@functools.cache
def schedule(steps: int, last: float) -> np.ndarray:
    """Rows t = 1..T of (weight of the predicted image, weight of x_t, standard deviation of the prediction).

    With abar_t = cos^2(pi/2 t/(T + 1/2)), Nichol and Dhariwal's schedule (arXiv 2102.09672, eq. 17) without
    its offset, cut so that abar_T is above 0: q(x_(t-1) | x_t, x_0) has the mean c0 x_0 + c1 x_t and the
    deviation sigma_t (Ho et al., eq. 7). A predicted image drawn from N(x_0, s_t^2) with s_t = sigma_t / c0
    gives the same distribution. At t = 1, c0 = 1, c1 = 0 and sigma_t = 0; the deviation is `last` there.
    """
    kept = [math.cos(math.pi / 2 * t / (steps + 0.5)) ** 2 for t in range(steps + 1)]
    rows = []
    for t in range(1, steps + 1):
        beta = 1 - kept[t] / kept[t - 1]
        image = math.sqrt(kept[t - 1]) * beta / (1 - kept[t])
        now = math.sqrt(1 - beta) * (1 - kept[t - 1]) / (1 - kept[t])
        sigma = math.sqrt(beta * (1 - kept[t - 1]) / (1 - kept[t]))
        rows.append((image, now, sigma / image if t > 1 else last))
    return np.array(rows)


@final
@piece(paper="arXiv:2006.11239")
class Ddpm:
    """An image of 8x8 pixels from -1 to 1 in `steps` steps of ancestral sampling. The prompt's answer is the
    wanted digit; the noise x_T is a function of the prompt's id, so that all samples of a prompt begin with
    one noise.

    Observation, 64 + 10 + T + 1 numbers: x_t, the digit and the steps left, each as an indicator, and the
    logarithm of s_t. Action, 64 numbers: a prediction of the image x_0, drawn from N(mean, s_t^2) by a policy
    with `scale: observed`; x_(t-1) = c0 action + c1 x_t (`schedule`). The last action is the image. Rewards
    are 0: reward pieces score the image.

    The expert of a prompt with an image in `meta.image` (64 numbers from 0 to 16) predicts that image at each
    step, with the same noise: its episodes are samples of the forward process read backwards, with x_T drawn
    apart from the image, and imitation is the variational bound of DDPM.
    """

    def __init__(self, *, steps: Count = 10, last: Positive = 0.1) -> None:
        self.steps, self.rows = steps, schedule(steps, last)
        self.observation, self.action = PIXELS + CLASSES + steps + 1, PIXELS

    def begin(self, prompts: Sequence[Prompt]) -> Any:
        self.prompts, self.left = prompts, self.steps
        self.state = np.stack([noise(prompt.id) for prompt in prompts])
        self.digits = np.eye(CLASSES)[[wanted(prompt) for prompt in prompts]]
        return self._seen()

    def _seen(self) -> Any:
        """Observations (N,O); of a finished image, with no step left, the last ones' size."""
        count = len(self.state)
        left, scale = np.zeros((count, self.steps)), np.zeros((count, 1))
        if self.left:
            left[:, self.left - 1] = 1
            scale += math.log(self.rows[self.left - 1, 2])
        return np.concatenate([self.state, self.digits, left, scale], axis=1)

    def step(self, actions: Any) -> ArrayStep:
        image, now, _ = self.rows[self.left - 1]
        self.state = image * np.asarray(actions, float) + now * self.state
        self.left -= 1
        count = len(self.state)
        return ArrayStep(self._seen(), np.zeros(count), np.full(count, self.left == 0))

    def expert(self, normals: Any) -> Any:
        images = np.stack([_image(prompt) for prompt in self.prompts])
        return images + self.rows[self.left - 1, 2] * normals

    def score(self) -> list[Mapping[str, float]]:
        return [{"ink": float((np.clip(row, -1, 1).mean() + 1) / 2)} for row in self.state]

    def summary(self) -> list[str]:
        """The image as eight lines of eight characters, the darker the more ink."""
        shades = np.clip((np.clip(self.state, -1, 1) + 1) / 2 * len(SHADES), 0, len(SHADES) - 1).astype(int)
        return [
            "\n".join("".join(SHADES[i] for i in line) for line in row.reshape(SIDE, SIDE)) for row in shades
        ]


def noise(name: str) -> np.ndarray:
    """x_T (64,) of a prompt, standard normal."""
    seed = int.from_bytes(hashlib.sha256(f"ddpm {name}".encode()).digest()[:8])
    return np.random.default_rng(seed).standard_normal(PIXELS)


def wanted(prompt: Prompt) -> int:
    """The digit that a prompt asks for. `DataError` if it names none."""
    if prompt.answer is None or prompt.answer not in tuple("0123456789"):
        raise DataError(f"prompt {prompt.id!r}: expected a digit as its answer, got {prompt.answer!r}")
    return int(prompt.answer)


def _image(prompt: Prompt) -> np.ndarray:
    image = prompt.meta.get("image")
    if image is None or len(image) != PIXELS:
        raise DataError(f"prompt {prompt.id!r}: expected the {PIXELS} pixels of its image in meta.image")
    return np.asarray(image, float) / 8 - 1
