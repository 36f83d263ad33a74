"""Intuitive fine-tuning: its reader against padded transformers, and its limit, maximum likelihood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ratchet.components.models.attention import register
from ratchet.components.models.forward import model_outputs
from ratchet.components.models.load import load_model
from ratchet.components.piece import build
from ratchet.components.training.objectives import Meter, parts
from ratchet.components.training.packing import pack
from ratchet.components.training.step_loss import measure
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Batch, Group, Outputs, Prompt, Read, Trajectory

SPEC = {"weight": 1.0, "reduce": "row_mean", "label": "loss"}


def llama(attention: str) -> torch.nn.Module:
    register()
    torch.manual_seed(0)
    sizes = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    config: Any = LlamaConfig(**sizes, **heads, attn_implementation=attention)
    return LlamaForCausalLM(config).eval()


def groups(vocabulary: int = 61) -> list[Group]:
    """A long prompt with two answers, which is packed once, and a short one with two turns."""
    drawn = torch.Generator().manual_seed(1)

    def draw(n: int) -> list[int]:
        return torch.randint(1, vocabulary, (n,), generator=drawn).tolist()

    prompt = draw(12)
    rows = [([*prompt, *draw(n)], [False] * 12 + [True] * n) for n in (5, 3)]
    turns = (draw(9), [False, False, True, True, False, False, True, True, True])
    return [
        Group(Prompt("a", ()), tuple(Trajectory((), {"tokens": t}, mask) for t, mask in rows)),
        Group(Prompt("b", ()), (Trajectory((), {"tokens": turns[0]}, turns[1]),)),
    ]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_mixed_logprobs_equal_padded_transformers(share: float) -> None:
    ours, plain = llama("ratchet"), llama("eager")
    (batch,) = pack(groups(), unit="row", tokens=1000)
    (part,) = parts([{"name": "ift", "share": share, "gamma": 0.9, **SPEC}])
    (read,) = part.requests
    assert isinstance(read, Read)
    found = model_outputs(ours, "policy", batch, part.requests).by_name[read]
    expected = torch.zeros(batch.mask.shape)
    for b, row in enumerate(batch.inputs["tokens"]):
        mask = batch.mask[b, : len(row)]
        with torch.no_grad():
            likeliest = plain(input_ids=row[None]).logits[0].argmax(-1)
        guess = torch.where(mask, likeliest.roll(1), row)
        embedding = plain.get_input_embeddings()  # pyright: ignore[reportCallIssue]
        mixed = (1 - share) * embedding(row) + share * embedding(guess)
        logp = plain(inputs_embeds=mixed[None]).logits[0].log_softmax(-1)
        shifted = logp[:-1].gather(-1, row[1:, None])[:, 0]
        expected[b, 1 : len(row)] = torch.where(mask[1:], shifted, 0.0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    weights = torch.randn(found.shape)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=2e-5, rtol=1e-4)


def test_without_mixing_and_propagation_it_is_maximum_likelihood() -> None:
    found = []
    for spec in ({"name": "ift", "share": 0.0, "gamma": 0.0}, {"name": "likelihood"}):
        model = llama("ratchet")

        class Learner:
            def __call__(self, batch, outputs, model=model):
                return model_outputs(model, "policy", batch, outputs)

            def backward(self, loss):
                loss.backward()

        loss = measure(
            Learner(), parts([{**spec, **SPEC}]), groups(), tokens=10, backward=True, meter=Meter()
        )  # pyright: ignore[reportArgumentType]
        found.append((loss, [p.grad for p in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("detached", "slopes"), [(False, [0.75, 1.125]), (True, [1.0, 1.0])])
def test_gradients_flow_through_the_weights_unless_these_are_detached(
    detached: bool, slopes: list[float]
) -> None:
    """Losses a = 2 and b = 4 with gamma 1/2: their later sums a + b/2 and b are 4, so that both weights are
    1. The sum of w l is N / D with N = 2 (a^2 + ab/2 + b^2) = 48 and D = a + 3b/2 = 8; its slopes are
    2 (2a + b/2) / 8 - 48 / 64 = 0.75 by a and 2 (a/2 + 2b) / 8 - 1.5 x 48 / 64 = 1.125 by b.
    """
    losses = torch.tensor([[2.0, 4.0]], requires_grad=True)
    rows = torch.zeros(1, dtype=torch.long)
    batch = Batch({}, torch.ones(1, 2, dtype=torch.bool), {}, rows, rows, ("p",))
    objective = build("objective", {"name": "ift", "gamma": 0.5, "detach_weights": detached})
    terms = objective(Outputs({"mixed": -losses}), batch)
    assert terms.metrics["weight"].tolist() == [[1.0, 1.0]] and float(terms.loss.detach().sum()) == 6.0
    (found,) = torch.autograd.grad(terms.loss.sum(), losses)
    assert found[0].tolist() == pytest.approx(slopes)


def test_the_learner_with_tied_embeddings_has_the_same_gradient(tiny_model: Path) -> None:
    """The learner's embedding has a sparse gradient, here of two lookups and a head."""
    (batch,) = pack(groups(200), unit="row", tokens=1000)
    (part,) = parts([{"name": "ift", **SPEC}])
    learner, plain = TorchLearner(tiny_model), load_model(tiny_model, "policy")
    learner.backward(part(learner(batch, part.requests), batch).loss.sum())
    part(model_outputs(plain, "policy", batch, part.requests), batch).loss.sum().backward()
    for (name, p), q in zip(learner.model.named_parameters(), plain.parameters(), strict=True):
        gradient = p.grad.to_dense() if p.grad is not None and p.grad.is_sparse else p.grad
        torch.testing.assert_close(
            gradient, q.grad, atol=1e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_a_schedule_of_the_share_reaches_the_forward_pass() -> None:
    share = {"name": "anneal", "start": 0.0, "end": 1.0, "steps": 2}
    (part,) = parts([{"name": "ift", "share": share, **SPEC}])
    asked = []
    for _ in range(3):
        (read,) = part.requests
        asked.append(dict(read.options)["share"])  # pyright: ignore[reportAttributeAccessIssue]
        part.schedules["share"].update({})
    assert asked == [0.0, 0.5, 1.0]
    (batch,) = pack(groups(), unit="row", tokens=1000)
    out = Outputs({next(iter(part.requests)): -torch.ones(batch.mask.shape)})
    assert part(out, batch).metrics["weight"].shape == batch.mask.shape
