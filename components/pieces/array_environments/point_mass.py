"""Environment `point_mass`: a mass on a plane that a force drives to a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.protocols import ArrayStep
from ratchet.components.recipes.ranges import Count, NotNegative, Positive
from ratchet.components.types import Prompt

TIME = 0.1
"""Seconds of a step."""
GAIN, DAMPING = 1.0, 0.4
"""Of the expert: force per distance, and per velocity. It overshoots: critical damping would be 2."""
NEAR = 0.1
"""Distance to the target at which the episode counts as solved."""


@final
@piece(paper="arXiv:1801.00690")
class PointMass:
    """A unit mass at p with velocity v, on a plane, and a force u of two numbers, each cut to -1 to 1. A step
    of `TIME` h: v' = v + h u, then p' = p + h v' (semi-implicit Euler). The target is the origin. Reward of a
    step: -h (|p'|^2 + `effort` |u|^2), the cost of a linear-quadratic regulator; the episode ends after
    `length` steps.

    Observation, 5 numbers: p, v, and the share of steps left. `meta.start` of a prompt: p and v at first. The
    expert is a proportional-derivative controller, u = -`GAIN` p - `DAMPING` v, with normal noise of
    deviation `noise`. Measure `solved`: 1 if the mass is nearer than `NEAR` to the target in the end.
    """

    observation, action = 5, 2

    def __init__(self, *, length: Count = 40, effort: NotNegative = 0.01, noise: Positive = 0.3) -> None:
        self.length, self.effort, self.noise = length, effort, noise

    def begin(self, prompts: Sequence[Prompt]) -> Any:
        starts = [prompt.meta.get("start", ()) for prompt in prompts]
        for prompt, start in zip(prompts, starts, strict=True):
            if len(start) != 4:
                raise DataError(
                    f"prompt {prompt.id!r}: expected the two numbers of a position and the two of a velocity "
                    f"in meta.start, got {start!r:.80}"
                )
        state = np.array(starts, float)
        self.place, self.velocity, self.taken = state[:, :2], state[:, 2:], 0
        return self._seen()

    def _seen(self) -> Any:
        left = np.full((len(self.place), 1), 1 - self.taken / self.length)
        return np.concatenate([self.place, self.velocity, left], axis=1)

    def step(self, actions: Any) -> ArrayStep:
        force = np.clip(np.asarray(actions, float), -1, 1)
        self.velocity = self.velocity + TIME * force
        self.place = self.place + TIME * self.velocity
        self.taken += 1
        cost = np.square(self.place).sum(1) + self.effort * np.square(force).sum(1)
        return ArrayStep(self._seen(), -TIME * cost, np.full(len(cost), self.taken >= self.length))

    def expert(self, normals: Any) -> Any:
        return -GAIN * self.place - DAMPING * self.velocity + self.noise * normals

    def score(self) -> list[Mapping[str, float]]:
        return [
            {"solved": float(distance < NEAR), "distance": float(distance)} for distance in self._distances()
        ]

    def summary(self) -> list[str]:
        return [f"The mass is {distance:.2f} from the target." for distance in self._distances()]

    def _distances(self) -> Any:
        return np.sqrt(np.square(self.place).sum(1))
