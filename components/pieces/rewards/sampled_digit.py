"""Rewards of an image of real-valued pixels: the wanted digit's probability by two kinds of classifiers."""

from __future__ import annotations

import functools

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.piece import each, piece
from ratchet.components.pieces.array_environments.ddpm import CLASSES, PIXELS, wanted
from ratchet.components.pieces.testbeds.gaussian_digits import portion
from ratchet.components.types import Prompt, Trajectory

PENALTY = 1e-2
"""Ridge penalty of the regression: 95 % right on the policy's images, 0.82 for the right digit on average."""
WIDTH = 1.0
"""Squared distance of two images, over 2, at which a similarity falls to 1/e: 98 % right on the policy's
images, 0.93 for the right digit on average.
"""


def image_of(trajectory: Trajectory) -> np.ndarray:
    """The image (64,) that an episode of `ddpm` made, its last action, cut to pixels from -1 to 1.
    `DataError` for another trajectory.
    """
    actions = trajectory.inputs.get("actions", ())
    if not len(actions) or len(actions[-1]) != PIXELS:
        raise DataError(
            f"expected an episode with actions of {PIXELS} numbers, an image; got {len(actions)} actions"
        )
    return np.clip(np.asarray(actions[-1], float), -1, 1)


def regression(images: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """Weights (65,10) of a softmax regression of the digits (N,) on images (N,64) and a constant, which
    minimise the mean cross-entropy plus `PENALTY`/2 of the sum of their squares (L-BFGS from 0).
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    inputs, targets = with_constant(images), np.eye(CLASSES)[digits]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(-1, CLASSES)
        logs = log_softmax(inputs @ weights, axis=1)
        slope = inputs.T @ (np.exp(logs) - targets) / len(images) + PENALTY * weights
        return float(-(logs * targets).sum(1).mean() + PENALTY / 2 * flat @ flat), slope.ravel()

    found = minimize(
        loss, np.zeros(inputs.shape[1] * CLASSES), jac=True, method="L-BFGS-B", options={"maxiter": 500}
    )
    return found.x.reshape(-1, CLASSES)


def with_constant(images: np.ndarray) -> np.ndarray:
    """Images (N,64) with a last column of ones."""
    return np.concatenate([images, np.ones((len(images), 1))], axis=1)


def by_regression(weights: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Probability of each digit (10,)."""
    from scipy.special import softmax

    return softmax(with_constant(image[None]) @ weights, axis=1)[0]


def by_similarity(seen: np.ndarray, digits: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Probability of each digit (10,): its share of the similarities exp(-d^2 / 2 `WIDTH`) of the image to
    those seen (N,64) of digits (N,), with d their distance.
    """
    apart = np.square(seen - image).sum(1) / (2 * WIDTH)
    shares = np.bincount(digits, np.exp(apart.min() - apart), CLASSES)
    return shares / shares.sum()


@functools.cache
def _seen(name: str) -> tuple[np.ndarray, np.ndarray]:
    rows = portion(name)
    return np.array([image for image, _ in rows]) / 8 - 1, np.array([digit for _, digit in rows])


@functools.cache
def _first() -> np.ndarray:
    return regression(*_seen("first"))


@piece(writes=("reward.sampled_digit", "reward.sampled_digit.status"), paper="arXiv:2305.13301")
@each
def sampled_digit(prompt: Prompt, trajectory: Trajectory) -> float:
    """Alignment of a sampled image with its prompt, 0 to 1: the probability of the digit `prompt.answer`
    ("3") by a softmax regression on 425 images that the policy never saw.
    """
    return float(by_regression(_first(), image_of(trajectory))[wanted(prompt)])


@piece(writes=("reward.similar", "reward.similar.status"), paper="arXiv:2305.13301")
@each
def similar(prompt: Prompt, trajectory: Trajectory) -> float:
    """The same by another kind of classifier, on 425 further images: similarities to these (`by_similarity`).
    For evaluation: an image that satisfies the regression alone is no better digit.
    """
    return float(by_similarity(*_seen("second"), image_of(trajectory))[wanted(prompt)])
