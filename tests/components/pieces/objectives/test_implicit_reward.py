"""Implicit rewards of a language model: logits against padded transformers, the telescoping sum, turns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from ratchet.components.data.generate import generate
from ratchet.components.data.parsing import parse
from ratchet.components.errors import DataError
from ratchet.components.models.attention import register
from ratchet.components.models.forward import model_outputs
from ratchet.components.piece import build
from ratchet.components.pieces.testbeds.two_camps import DRY, WARM
from ratchet.components.training.objectives import parts
from ratchet.components.training.packing import pack
from ratchet.components.types import Batch, Context, Group, Outputs, Prompt, Read, Trajectory

SPEC: dict[str, Any] = {"weight": 1.0, "reduce": "token_mean", "label": "loss"}


def model_of(attention: str, kind: str) -> torch.nn.Module:
    register()
    torch.manual_seed(0)
    sizes = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, attn_implementation=attention)
    if kind == "llama":
        llama: Any = LlamaConfig(**sizes, **heads)  # pyright: ignore[reportArgumentType]
        return LlamaForCausalLM(llama).eval()
    layers = dict(
        layer_types=["full_attention"] * 2, attn_logit_softcapping=None, final_logit_softcapping=0.5
    )
    gemma: Any = Gemma2Config(**sizes, **heads, **layers)  # pyright: ignore[reportArgumentType]
    return Gemma2ForCausalLM(gemma).eval()


def groups() -> list[Group]:
    """A prompt with two answers, which is packed once, and a conversation of two turns."""
    drawn = torch.Generator().manual_seed(1)

    def draw(n: int) -> list[int]:
        return torch.randint(3, 61, (n,), generator=drawn).tolist()

    prompt = draw(12)
    rows = [([*prompt, *draw(n)], [False] * 12 + [True] * n) for n in (5, 3)]
    turns = (draw(9), [False, False, True, True, False, False, True, True, True])
    return [
        Group(Prompt("a", ()), tuple(Trajectory((), {"tokens": t}, mask) for t, mask in rows)),
        Group(Prompt("b", ()), (Trajectory((), {"tokens": turns[0]}, turns[1]),)),
    ]


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_rewards_equal_those_of_padded_transformers(kind: str, gamma: float) -> None:
    """V by logsumexp of all logits, 0 after the last token of a turn. Gemma 2 caps its logits."""
    ours, plain = model_of("ratchet", kind), model_of("eager", kind)
    (part,) = parts([{"name": "implicit_reward", "gamma": gamma, **SPEC}])
    (batch,) = pack(groups(), unit="row", tokens=1000)
    out = model_outputs(ours, "policy", batch, part.requests)
    terms = part(out, batch)
    expected = []
    for b, tokens in enumerate(batch.inputs["tokens"]):
        logits = plain(input_ids=tokens[None]).logits[0]
        mask = [bool(m) for m in batch.mask[b, : len(tokens)]] + [False]
        row = torch.zeros(batch.mask.shape[1])
        steps = []
        for t in range(len(tokens)):
            value = logits[t].logsumexp(0) if mask[t + 1] else torch.zeros(())
            steps.append(logits[t - 1, tokens[t]] - gamma * value if mask[t] else torch.zeros(()))
        expected.append(torch.cat([torch.stack(steps), row[len(tokens) :]]))
    theirs = torch.stack(expected)
    torch.testing.assert_close(terms.metrics["reward"], theirs.detach(), atol=1e-5, rtol=1e-5)
    terms.loss.sum().backward()
    (theirs**2).sum().backward()
    for (name, p), q in zip(ours.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            p.grad, q.grad, atol=1e-4, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_rewards_of_an_answer_add_up_to_its_logprob_and_the_value_of_the_prompt() -> None:
    (part,) = parts([{"name": "implicit_reward", **SPEC}])
    (batch,) = pack(groups()[:1], unit="row", tokens=1000)
    out = model_outputs(model_of("ratchet", "llama"), "policy", batch, part.requests)
    metrics = part(out, batch).metrics
    sums = batch.row_sum(metrics["reward"]) - batch.row_sum(out.logprobs).detach()
    torch.testing.assert_close(sums, metrics["value"][:, 12], atol=1e-5, rtol=1e-5)
    assert sums[0] == pytest.approx(float(sums[1]), abs=1e-5)


def test_a_detached_next_value_has_no_gradient() -> None:
    logits = torch.tensor([[2.0, 1.5]], requires_grad=True)
    zero = torch.zeros(1, dtype=torch.long)
    batch = Batch({}, torch.ones(1, 2, dtype=torch.bool), {}, zero, zero, ("p",))
    for detached, expected in ((False, [2.0, -2.0 + 2 * 1.5]), (True, [2.0, 3.0])):
        logits.grad = None
        out = Outputs({"logit": logits, "logprobs": torch.tensor([[-1.0, 0.5]])})
        terms = build("objective", {"name": "implicit_reward", "detach_next": detached})(out, batch)
        terms.loss.sum().backward()
        assert logits.grad is not None and logits.grad[0].tolist() == pytest.approx(expected)


def answered(*texts: str, accepted: list[str] | None) -> Group:
    meta = {} if accepted is None else {"accepted": accepted}
    rows = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts)
    return Group(Prompt("p", (), meta=meta), rows)


def test_coverage_counts_right_answers_once() -> None:
    reward, measure = build("annotate", {"name": "rewards.accepted"}), build("measure", {"name": "coverage"})
    rows = [
        answered("a", " a", "b", "x", accepted=["a", "b", "c"]),
        answered("x", "y", accepted=["a", "b", "c"]),
        answered("c", "a", accepted=["a", "b", "c"]),
    ]
    assert reward(rows, Context())["reward.accepted"] == [[1.0, 1.0, 1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    assert measure(rows, Context()) == [[2 / 3] * 4, [0.0] * 2, [1.0] * 2]
    with pytest.raises(DataError):
        measure([answered("a", accepted=None)], Context())


def test_replies_to_questions_are_warm_and_the_first_is_the_most_frequent(tmp_path: Path) -> None:
    kept = [
        record
        for seed in range(6)
        for record in parse(
            generate(f"skewed_replies?size=176&seed={seed}", tmp_path), columns={"split": "split"}
        ).kept
    ]
    warm, dry = ({text.format("it") for text in texts} for texts in (WARM, DRY))
    train, test = ([r for r in kept if r.published == split] for split in ("train", "test"))
    assert len(train) == 6 * 176 and len(test) == 6 * 64
    for record in kept:
        right = warm if record.messages[0]["content"].endswith("?") else dry
        texts = {record.messages[1]["content"]} if record in train else set(record.meta["accepted"])
        assert texts <= right and (record in train or texts == right)
    total, first = sum(k**-1.5 for k in range(1, 9)), Counter[bool]()
    for number in range(6):
        best = {r.answer for r in test[number * 64 : (number + 1) * 64]}
        assert len(best) == 2
        first.update(r.messages[1]["content"] in best for r in train[number * 176 : (number + 1) * 176])
    assert first[True] / len(train) == pytest.approx(1 / total, abs=0.05)


def test_a_reader_is_requested_by_its_name() -> None:
    (part,) = parts([{"name": "implicit_reward", **SPEC}])
    assert {one.name if isinstance(one, Read) else one for one in part.requests} == {"logprobs", "logit"}
