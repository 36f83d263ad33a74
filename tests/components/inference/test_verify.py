"""Model types against transformers: packed log-probs, gradients, decoding and saving; others are refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ratchet.components.errors import SourceError
from ratchet.components.inference.verify import TESTED, logprob_difference, own_logprobs, require_verified
from ratchet.components.models.attention import register
from ratchet.components.models.forward import model_outputs
from ratchet.components.models.load import load_policy, save_model
from ratchet.components.training.objectives import parts
from ratchet.components.training.packing import pack
from ratchet.components.training.torch import TorchLearner
from ratchet.components.training.trainer import one_step
from ratchet.components.types import Group, Prompt, Trajectory

SIZES = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    sliding_window=12,
    num_local_experts=4,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    logit_scale=0.5,
    logits_scaling=2.0,
    final_logit_softcapping=2.0,
    attn_logit_softcapping=1.0,
)
GPT2 = dict(n_embd=32, n_layer=4, n_head=4, n_positions=256, n_inner=48)
QWEN = dict(use_sliding_window=True, max_window_layers=2)


def tiny(kind: str, tokenizer: Any, attention: str = "ratchet", **more: Any) -> Any:
    """A model of a type, of a few thousand random weights, large enough that attention matters."""
    register()
    torch.manual_seed(0)
    known = set(AutoConfig.for_model(kind).to_dict()) | set(AutoConfig.for_model(kind).attribute_map)
    sizes = GPT2 if kind == "gpt2" else {k: v for k, v in {**SIZES, **QWEN, **more}.items() if k in known}
    ids = dict(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    config = AutoConfig.for_model(kind, **sizes, **ids)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.15).add_(1.0 if parameter.ndim == 1 and "norm" in name else 0.0)
    return model


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.mark.parametrize("kind", sorted(TESTED))
def test_a_model_type_agrees_with_transformers(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    model = tiny(kind, tokenizer)
    torch.manual_seed(1)
    shared = torch.randint(3, len(tokenizer), (20,)).tolist()
    rows = [
        [*shared, *torch.randint(3, len(tokenizer), (n,)).tolist()] for n in (5, 9)
    ]  # longer than the window
    paths = [Trajectory((), {"tokens": r}, [False] * 20 + [True] * (len(r) - 20)) for r in rows]
    batch = pack([Group(Prompt("p", ()), tuple(paths))], unit="group", tokens=999)[0]
    ours = model_outputs(model, "policy", batch, frozenset({"logprobs", "entropy"})).logprobs
    weights = torch.randn(ours.shape)
    (ours * weights).sum().backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    save_model(model, tokenizer, tmp_path)
    again = model_outputs(load_policy(tmp_path), "policy", batch, frozenset({"logprobs"})).logprobs
    torch.testing.assert_close(again, ours, atol=1e-6, rtol=0)
    model.zero_grad()
    assert logprob_difference(model, tokenizer) < 1e-5
    theirs = own_logprobs(model, batch.inputs["tokens"])
    sum((t[20:] * weights[b, 20 : len(t)]).sum() for b, t in enumerate(theirs)).backward()
    for (name, p), gradient in zip(model.named_parameters(), gradients, strict=True):
        if p.grad is None or gradient is None:  # experts that no token chose
            assert (p.grad is None or not p.grad.any()) and (gradient is None or not gradient.any()), name
        else:
            scale = float(p.grad.abs().max()) + 1e-3
            torch.testing.assert_close(gradient, p.grad, atol=2e-5 * scale + 1e-6, rtol=1e-3, msg=name)


@pytest.mark.parametrize("kind", sorted(TESTED))
def test_an_sft_and_a_dpo_step_have_the_loss_of_transformers_logits(
    kind: str, tokenizer: Any, tmp_path: Path
) -> None:
    """One update each of a model loaded from its directory. SFT: the mean of -log p over the tokens of the
    loss mask. DPO after it, against the model before: -log sigmoid(0.1 z) of one pair.
    """
    save_model(tiny(kind, tokenizer), tokenizer, tmp_path)
    learner = TorchLearner(tmp_path, learning_rate=1e-2)
    torch.manual_seed(1)
    shared = torch.randint(3, len(tokenizer), (20,)).tolist()
    rows = [[*shared, *torch.randint(3, len(tokenizer), (n,)).tolist()] for n in (5, 9)]
    paths = tuple(Trajectory((), {"tokens": r}, [False] * 20 + [True] * (len(r) - 20)) for r in rows)

    def theirs() -> list[torch.Tensor]:
        copied = copy.deepcopy(learner.model)
        with torch.no_grad():
            return own_logprobs(copied, [torch.tensor(row) for row in rows])

    def step(objective: dict[str, Any], columns: dict[str, Any]) -> float:
        update = {"policy": parts([{"weight": 1.0, "label": "loss", "reduce": "unit_mean", **objective}])}
        group = Group(Prompt("p", ()), paths, columns)
        return one_step({"policy": learner}, update, [group], tokens=999)["policy/loss"]

    reference = theirs()
    expected = -torch.cat([one[20:] for one in reference]).mean()
    assert step({"name": "likelihood", "reduce": "token_mean"}, {}) == pytest.approx(
        float(expected), abs=2e-5
    )
    learnt = theirs()
    assert max(float((a - b).abs().max()) for a, b in zip(learnt, reference, strict=True)) > 1e-2
    chosen, rejected = ((now - then)[20:].sum() for now, then in zip(learnt, reference, strict=True))
    expected = -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected))
    columns = {"logprobs.reference": [one.tolist() for one in reference]}
    assert step({"name": "preference.dpo", "beta": 0.1}, columns) == pytest.approx(float(expected), abs=2e-5)
    assert any(not torch.equal(a, b) for a, b in zip(theirs(), learnt, strict=True))


@pytest.mark.parametrize("kind", ["qwen3_next", "jamba", "bloom", "stablelm"])
def test_a_model_type_that_cannot_be_packed_is_refused(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    save_model(tiny(kind, tokenizer), tokenizer, tmp_path)
    with pytest.raises(SourceError) as caught:
        require_verified(tmp_path)
    assert kind in str(caught.value) and "qwen3" in str(caught.value)


def test_an_untested_type_that_agrees_is_accepted(tokenizer: Any, tmp_path: Path) -> None:
    save_model(tiny("persimmon", tokenizer), tokenizer, tmp_path)
    assert require_verified(tmp_path)


def test_a_sentence_encoder_is_not_verified(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    assert not require_verified(tmp_path)


def test_a_tested_type_is_not_verified_again(tokenizer: Any, tmp_path: Path) -> None:
    save_model(tiny("llama", tokenizer), tokenizer, tmp_path)
    assert not require_verified(tmp_path)


def test_the_documentation_lists_the_tested_types() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    listed = page.partition("<!-- tested -->")[2].partition("<!-- end -->")[0]
    assert set(re.findall(r"^\| `(\w+)` \|.* equal \|", listed, re.MULTILINE)) == TESTED
