"""Adapter `steer`: the identity at first, E (I + e W) h after, and strengths as a mixture of saved models."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ratchet.components.models.layers import backbone
from ratchet.components.piece import build

IDS = torch.arange(1, 8)[None]


def model() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def logits(language: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return language(IDS).logits[0]


def steered(seed: int, *, scale: float = 1.0) -> nn.Module:
    """A controller with its B drawn at random."""
    adapted = build("adapter", {"name": "steer", "rank": 3, "seed": seed, "scale": scale})(model())
    with torch.no_grad():
        adapted.steer.up.copy_(torch.randn(16, 3, generator=torch.Generator().manual_seed(seed)))
    return adapted


def test_the_model_is_unchanged_at_first_and_its_own_weights_are_frozen() -> None:
    plain = model()
    before = logits(plain)
    adapted = build("adapter", {"name": "steer", "rank": 3})(plain)
    assert torch.equal(logits(plain), before)
    assert {n: tuple(p.shape) for n, p in adapted.named_parameters() if p.requires_grad} == {
        "steer.down": (3, 16),
        "steer.up": (16, 3),
    }
    adapted(IDS, labels=IDS).loss.backward()
    assert adapted.steer.up.grad.abs().max() > 0


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_logits_are_those_of_the_changed_state_and_survive_merging(scale: float) -> None:
    adapted = steered(1, scale=scale)
    with torch.no_grad():
        h = backbone(model())(IDS).last_hidden_state[0]
        change = scale * adapted.steer.up @ adapted.steer.down
        expected = (h + h @ change.t()) @ model().get_input_embeddings().weight.t()
    assert (expected - logits(model())).abs().max() > 0.1
    torch.testing.assert_close(logits(adapted.model), expected, rtol=1e-4, atol=1e-4)
    merged = copy.deepcopy(adapted).merge_and_unload()
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-4)
    assert not merged.config.tie_word_embeddings
    assert torch.equal(merged.get_input_embeddings().weight, model().get_input_embeddings().weight)
    torch.testing.assert_close(logits(adapted.model), expected, rtol=1e-4, atol=1e-4)  # the copy was merged


@pytest.mark.parametrize("strengths", [(0.0, 0.0), (0.7, -0.4), (2.0, 0.5)])
def test_strengths_are_weights_of_a_mixture(strengths: tuple[float, float]) -> None:
    """log softmax E (I + e1 W1 + e2 W2) h = log softmax of (1 - e1 - e2) log p + e1 log p1 + e2 log p2; at
    strengths of 0 it is the frozen model.
    """
    controllers = [steered(seed) for seed in (1, 2)]
    with torch.no_grad():
        h = backbone(model())(IDS).last_hidden_state[0]
        change = sum(e * c.steer.up @ c.steer.down for e, c in zip(strengths, controllers, strict=True))
        direct = ((h + h @ change.t()) @ model().get_input_embeddings().weight.t()).log_softmax(-1)
    saved = [logits(c.merge_and_unload()).log_softmax(-1) for c in controllers]
    mixed = (1 - sum(strengths)) * logits(model()).log_softmax(-1)
    mixed = mixed + sum(e * one for e, one in zip(strengths, saved, strict=True))
    torch.testing.assert_close(mixed.log_softmax(-1), direct, rtol=1e-3, atol=1e-3)
    if not any(strengths):
        assert torch.equal(mixed, logits(model()).log_softmax(-1))
