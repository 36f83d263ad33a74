"""Rewards of an image of symbols: the wanted digit's probability by two classifiers, and ink."""

from __future__ import annotations

import functools

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.piece import each, piece
from ratchet.components.pieces.testbeds.digit_images import CODES, Image
from ratchet.components.pieces.testbeds.noised_digits import is_image, portion
from ratchet.components.types import Prompt, Trajectory

CLASSES = 10
PENALTY = 1e-3
"""Ridge penalty of the regression: 90 % right on the policy's images, 0.83 for the right digit on average."""
WIDTH = 1.0
"""Pixels by which a similarity falls to 1/e: 93 % right on the policy's images, 0.85 for the right digit."""


def pixels(codes: str) -> np.ndarray:
    """The 64 pixels (0 or 1) of an image, 2x2 of each symbol.

    >>> pixels("BKAAAAAAAAAAAAAA")[:8].tolist()
    [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    """
    return np.array([CODES.index(code) >> bit & 1 for code in codes for bit in range(4)], dtype=float)


def regression(seen: list[Image]) -> np.ndarray:
    """Weights (65,10) of a softmax regression of the digit on the pixels and a constant, which minimise the
    mean cross-entropy plus `PENALTY`/2 of the sum of their squares (L-BFGS from 0).
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    inputs = np.array([[*pixels(one.codes), 1.0] for one in seen])
    wanted = np.eye(CLASSES)[[one.digit for one in seen]]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(-1, CLASSES)
        logs = log_softmax(inputs @ weights, axis=1)
        slope = inputs.T @ (np.exp(logs) - wanted) / len(seen) + PENALTY * weights
        return float(-(logs * wanted).sum(1).mean() + PENALTY / 2 * flat @ flat), slope.ravel()

    start = np.zeros(inputs.shape[1] * CLASSES)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return found.x.reshape(-1, CLASSES)


def by_regression(weights: np.ndarray, codes: str) -> np.ndarray:
    """Probability of each digit (10,)."""
    from scipy.special import softmax

    return softmax(np.array([*pixels(codes), 1.0]) @ weights)


def by_similarity(seen: np.ndarray, digits: np.ndarray, codes: str) -> np.ndarray:
    """Probability of each digit (10,): its share of the similarities exp(-d / `WIDTH`) of the image to those
    seen (N,64) of digits (N,), with d the number of different pixels.
    """
    apart = np.abs(seen - pixels(codes)).sum(1)
    shares = np.bincount(digits, np.exp(-apart / WIDTH), CLASSES)
    return shares / shares.sum()


@functools.cache
def _first() -> np.ndarray:
    return regression(portion("first"))


@functools.cache
def _second() -> tuple[np.ndarray, np.ndarray]:
    seen = portion("second")
    return np.array([pixels(one.codes) for one in seen]), np.array([one.digit for one in seen])


@piece(writes=("reward.drawn_digit", "reward.drawn_digit.status"), paper="arXiv:2311.13231")
@each
def drawn_digit(prompt: Prompt, trajectory: Trajectory) -> float:
    """Alignment of an image with its prompt, 0 to 1: the probability of the digit `prompt.answer` ("3")
    by a softmax regression on 425 images that the policy never saw. 0 for a text that is no image. Failed for
    a prompt that names no digit.
    """
    wanted, codes = _wanted(prompt), trajectory.text.strip()
    return float(by_regression(_first(), codes)[wanted]) if is_image(codes) else 0.0


@piece(writes=("reward.recognised", "reward.recognised.status"), paper="arXiv:2311.13231")
@each
def recognised(prompt: Prompt, trajectory: Trajectory) -> float:
    """The same by another classifier, on 425 further images: similarities to these (`by_similarity`). For
    evaluation: an image that satisfies the first classifier alone is no better digit.
    """
    wanted, codes = _wanted(prompt), trajectory.text.strip()
    return float(by_similarity(*_second(), codes)[wanted]) if is_image(codes) else 0.0


@piece(writes=("reward.ink", "reward.ink.status"), paper="arXiv:2402.08714")
@each
def ink(prompt: Prompt, trajectory: Trajectory) -> float:
    """Share of the 64 pixels that are inked; 0.32 in the real images. 0 for a text that is no image."""
    codes = trajectory.text.strip()
    return float(pixels(codes).mean()) if is_image(codes) else 0.0


def _wanted(prompt: Prompt) -> int:
    if prompt.answer is None or prompt.answer not in tuple("0123456789"):
        raise DataError(f"prompt {prompt.id!r}: expected a digit as its answer, got {prompt.answer!r}")
    return int(prompt.answer)
