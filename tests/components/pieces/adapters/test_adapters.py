"""Trainable parameters of each adapter, on a two-layer transformers model."""

import pytest
import torch

from ratchet.components.errors import RecipeError
from ratchet.components.piece import build
from ratchet.components.pieces.adapters.lora import merge


def model(kind="causal", tied=True):
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        tie_word_embeddings=tied,
        num_labels=1,
        pad_token_id=0,
    )
    return (LlamaForCausalLM if kind == "causal" else LlamaForSequenceClassification)(config).eval()


def learning(module):
    return {name for name, p in module.named_parameters() if p.requires_grad}


def test_full_and_top_layers():
    names = {n for n, _ in model().named_parameters()}
    assert learning(build("adapter", {"name": "full"})(model())) == names
    top = learning(build("adapter", {"name": "top_layers", "count": 1})(model()))
    assert top == {n for n in names if n.startswith("model.layers.2.")} | {"model.norm.weight"}
    assert "score.weight" in learning(build("adapter", {"name": "top_layers", "count": 1})(model("reward")))
    with pytest.raises(RecipeError, match="1 to 3"):
        build("adapter", {"name": "top_layers", "count": 4})(model())


@pytest.mark.parametrize("options", [{}, {"dora": True}, {"rslora": True}])
def test_lora_initially_equals_the_base_model_and_merges(options):
    ids = torch.arange(1, 8)[None]
    plain = model()
    before = plain(ids).logits.detach()
    adapted = build("adapter", {"name": "lora", "rank": 2, **options})(plain)
    torch.testing.assert_close(adapted(ids).logits, before, rtol=1e-5, atol=1e-6)
    assert learning(adapted)
    assert all("lora_" in n for n in learning(adapted))
    adapted(ids, labels=ids).loss.backward()
    with torch.no_grad():
        for p in adapted.parameters():
            if p.grad is not None:
                p -= 0.5 * p.grad
    after = adapted(ids).logits.detach()
    assert (after - before).abs().max() > 1e-4
    merged = merge(adapted)
    torch.testing.assert_close(merged(ids).logits, after, rtol=1e-4, atol=1e-5)
    assert type(merged).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize("targets", ["q_proj", ["q_proj"], [r".*\.q_proj"], ["model.layers.1.mlp.up_proj"]])
def test_lora_targets_are_names_or_patterns_of_layers(targets):
    names = learning(build("adapter", {"name": "lora", "targets": targets})(model()))
    assert names and all("q_proj" in n or "up_proj" in n for n in names)
    every = learning(build("adapter", {"name": "lora", "targets": ["all-linear"]})(model()))
    assert every == learning(build("adapter", {"name": "lora"})(model())) > names


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_lora_has_no_adapter_of_output_layer_and_embeddings(target):
    with pytest.raises(RecipeError, match=f"no linear layer is called '{target}'"):
        build("adapter", {"name": "lora", "targets": ["q_proj", target]})(model(tied=False))


@pytest.mark.parametrize("targets", [["q_proj", "nonsense"], "nonsense"])
def test_lora_unknown_target_module_is_an_error(targets):
    with pytest.raises(RecipeError, match=r"no linear layer is called 'nonsense'; known: .*q_proj"):
        build("adapter", {"name": "lora", "targets": targets})(model())
    assert learning(build("adapter", {"name": "lora", "targets": r".*\.q_proj"})(model()))


@pytest.mark.parametrize(("targets", "why"), [([], "no layer"), (["*_proj"], "no regular expression")])
def test_lora_targets_that_say_nothing_are_an_error(targets, why):
    with pytest.raises(RecipeError, match=why):
        build("adapter", {"name": "lora", "targets": targets})(model())


def test_lora_init_is_deterministic_and_keeps_the_global_rng():
    def drawn(dice, **options):
        plain = model()  # seeds torch
        torch.manual_seed(dice)
        adapted = build("adapter", {"name": "lora", "rank": 2, **options})(plain)
        return {n: p for n, p in adapted.named_parameters() if "lora_A" in n}, torch.rand(1)

    (first, after), (second, other_after), (third, _) = drawn(1), drawn(2), drawn(1, seed=5)
    assert first and all(torch.equal(p, second[n]) for n, p in first.items())
    assert not any(torch.equal(p, third[n]) for n, p in first.items())
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1)) and not torch.equal(after, other_after)


@pytest.mark.parametrize("kind", ["causal", "reward", "policy_with_value"])
def test_lora_wraps_blocks_and_trains_heads_fully(kind):
    from ratchet.components.models.value import PolicyWithValue

    plain = (
        PolicyWithValue(model(tied=False), torch.nn.Linear(16, 1))
        if kind == "policy_with_value"
        else model(kind, tied=False)
    )
    head = {"causal": set(), "reward": {"score"}, "policy_with_value": {"value_head"}}[kind]
    names = learning(build("adapter", {"name": "lora", "rank": 2})(plain))
    adapted = {n for n in names if "lora_" in n}
    assert len(adapted) == 3 * 7 * 2 and all(
        ".layers." in n for n in adapted
    )  # layers, linear layers of each, A and B
    assert {n.split(".modules_to_save")[0].split(".")[-1] for n in names - adapted} == head


def test_lora_of_a_mixture_of_experts_with_a_value_head():
    from transformers import MixtralConfig, MixtralForCausalLM

    from ratchet.components.models.value import PolicyWithValue

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = MixtralConfig(vocab_size=31, intermediate_size=16, num_local_experts=2, **sizes)
    critic = PolicyWithValue(MixtralForCausalLM(config), torch.nn.Linear(16, 1))
    adapted = build("adapter", {"name": "lora", "rank": 2})(critic)
    own = {name for name in learning(adapted) if "lora_" not in name}
    assert len(learning(adapted)) > 2 and all("value_head" in name for name in own) and len(own) == 2
    assert type(merge(adapted)) is PolicyWithValue


def test_half_trains_half_of_the_matrices_of_every_kind():
    made = build("adapter", {"name": "half", "seed": 1})(model(tied=False))
    names = learning(made)
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= names
    feed_forward = []
    for number in range(3):
        own = [n for n in names if n.startswith(f"model.layers.{number}.")]
        assert sum("self_attn" in n for n in own) == 2
        assert sum("layernorm" in n for n in own) == 1
        feed_forward.append(sum("mlp" in n for n in own))
    assert sorted(feed_forward) == [1, 2, 2]
    assert names == learning(build("adapter", {"name": "half", "seed": 1})(model(tied=False)))
    assert names != learning(build("adapter", {"name": "half", "seed": 2})(model(tied=False)))


def test_half_leaves_frozen_matrices_as_they_were():
    made = build("adapter", {"name": "half"})(model())
    before = {n: p.detach().clone() for n, p in made.named_parameters()}
    optimiser = torch.optim.AdamW([p for p in made.parameters() if p.requires_grad], lr=0.1)
    made(torch.arange(1, 8)[None]).logits.logsumexp(-1).sum().backward()
    optimiser.step()
    changed = {n for n, p in made.named_parameters() if not torch.equal(p, before[n])}
    assert changed == learning(made)


@pytest.mark.parametrize(("vision", "text"), [(3, 6), (5, 3)])
def test_top_layers_of_a_vision_language_model_are_those_of_its_text_decoder(vision, text):
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    size = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model",
            "num_hidden_layers": vision,
            "image_size": 32,
            "patch_size": 16,
            **size,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": 50,
            "num_hidden_layers": text,
            "num_key_value_heads": 2,
            **size,
        },
    )
    adapter = build("adapter", {"name": "top_layers", "count": 1})
    names = learning(adapter(LlavaForConditionalGeneration(config)))
    assert not any("vision" in name or "projector" in name for name in names)
    assert any(f"language_model.layers.{text - 1}." in name for name in names)
    assert not any("language_model.layers.0." in name for name in names)
