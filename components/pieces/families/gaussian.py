"""Family `gaussian`: a diagonal Gaussian over actions whose mean is a network of the observation."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal, final

import torch
from torch import Tensor, nn

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Bool, Count, Finite, Natural

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@final
@piece(paper="arXiv:1707.06347")
class Gaussian(nn.Module):
    """Policy pi(a|o) = N(mean(o), diag(scale^2)) over actions of `action` numbers, given observations of
    `observation` numbers. The mean is a perceptron with `layers` hidden layers of `hidden` units.

    `scale: learned` is one logarithm of a standard deviation per number of the action, whatever the
    observation is, as in PPO's experiments (section 6.1 of the paper), at first `log_scale`. With `scale:
    observed` the last number of the observation is the logarithm of all of them: a noise schedule is the
    environment's own, as in a diffusion sampler. Values V(o) are those of a second network of the same size,
    whose output is 0 at first.
    """

    def __init__(
        self,
        *,
        observation: Count,
        action: Count,
        hidden: Count = 64,
        layers: Natural = 2,
        activation: Literal["tanh", "silu"] = "tanh",
        scale: Literal["learned", "observed"] = "learned",
        log_scale: Finite = 0.0,
        values: Bool = False,
    ) -> None:
        super().__init__()
        self.observation, self.action, self.scale = observation, action, scale
        self.mean = _perceptron(observation, action, hidden, layers, activation)
        if scale == "learned":
            self.log_scale = nn.Parameter(torch.full((action,), float(log_scale)))
        self.value = _perceptron(observation, 1, hidden, layers, activation) if values else None
        if self.value is not None:
            last = self.value[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def log_scales(self, observations: Tensor) -> Tensor:
        """Logarithms of the standard deviations (N,A) for observations (N,O)."""
        logs = self.log_scale if self.scale == "learned" else observations[:, -1:]
        return logs.expand(len(observations), self.action)

    def act(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (N,A) for observations (N,O) and standard normal noise (N,A), and their log-probs (N,)."""
        mean, logs = self.mean(observations), self.log_scales(observations)
        actions = mean + logs.exp() * noise
        return actions, log_density(actions, mean, logs)

    def outputs(self, observations: Tensor, actions: Tensor, names: Collection[str]) -> dict[str, Tensor]:
        """`logprobs`, `entropy`, `values` (N,) of steps with observations (N,O) and actions (N,A)."""
        logs, found = self.log_scales(observations), dict[str, Tensor]()
        if "logprobs" in names:
            found["logprobs"] = log_density(actions, self.mean(observations), logs)
        if "entropy" in names:
            found["entropy"] = (logs + 0.5 + HALF_LOG_TWO_PI).sum(-1)
        if "values" in names and self.value is not None:
            found["values"] = self.value(observations)[:, 0]
        return found


def log_density(actions: Tensor, mean: Tensor, logs: Tensor) -> Tensor:
    """Log-densities (N,) of actions (N,A) under means and logarithms of standard deviations (N,A):
    -1/2 ((a - m) / s)^2 - log s - 1/2 log 2 pi, summed over the numbers of an action.
    """
    distances = (actions - mean) * (-logs).exp()
    return (-0.5 * distances.square() - logs - HALF_LOG_TWO_PI).sum(-1)


def _perceptron(
    inputs: int, outputs: int, hidden: int, layers: int, activation: Literal["tanh", "silu"]
) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(inputs, hidden), nn.Tanh() if activation == "tanh" else nn.SiLU()]
        inputs = hidden
    return nn.Sequential(*parts, nn.Linear(inputs, outputs))
