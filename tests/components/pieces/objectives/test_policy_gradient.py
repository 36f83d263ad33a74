"""Policy gradients against the exact gradient of the expected reward, summed over all answers of a small
policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from ratchet.components.piece import build
from ratchet.components.types import Batch, Outputs

ANSWERS = torch.tensor(list(product(range(3), repeat=2)))  # two steps over three tokens
BEFORE = torch.stack(
    [torch.full((9,), 3), ANSWERS[:, 0]], 1
)  # what each step reads: the start, or the token before
REWARDS = torch.linspace(-1.0, 1.5, 9, dtype=torch.float64) ** 3


def logprobs(logits: Tensor, temperature: float) -> Tensor:
    """(9, 2): of each step of each answer."""
    return (logits / temperature).log_softmax(-1)[BEFORE, ANSWERS]


def gradients(spec: Mapping[str, Any], sampled_at: float) -> tuple[Tensor, Tensor]:
    """The expected gradient of an objective on answers drawn at a temperature, and minus that of the expected
    reward, both by the logits.
    """
    logits = torch.randn(
        4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    chance = logprobs(logits, sampled_at).sum(1).exp()
    (truth,) = torch.autograd.grad(-(chance * REWARDS).sum(), logits)
    own = logprobs(logits, 1.0)
    batch = Batch(
        {},
        torch.ones(9, 2, dtype=torch.bool),
        {"advantages": REWARDS, "logprobs.sampled": own.detach(), "logprobs.old": own.detach()},
        torch.arange(9),
        torch.arange(9),
        ("p",) * 9,
    )
    terms = build("objective", spec)(Outputs({"logprobs": own}), batch)
    (found,) = torch.autograd.grad((chance.detach()[:, None] * terms.loss).sum(), logits)
    return found, truth


@pytest.mark.parametrize(
    "spec",
    [{"name": "reinforce"}, {"name": "clip", "old": "sampled"}, {"name": "clip", "old": "old"}],
    ids=str,
)
def test_the_gradient_is_that_of_the_expected_reward_at_temperature_1_alone(spec: Mapping[str, Any]) -> None:
    """Colder answers would need the log-probs of the colder distribution, which is why the check refuses
    them.
    """
    found, truth = gradients(spec, 1.0)
    torch.testing.assert_close(found, truth)
    found, truth = gradients(spec, 0.5)
    assert torch.cosine_similarity(found.flatten(), truth.flatten(), dim=0) < 0.99
