"""Merging of a LoRA directory saved by PEFT against the model that PEFT computes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from ratchet.components.data.pins import base_address
from ratchet.components.errors import SourceError
from ratchet.components.models.lora import base_of, is_adapter, merge_adapter, save_adapter
from ratchet.components.stages.fetch import fetch_model

IDS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with tied embeddings and a tokenizer of eight words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            eos_token_id=1,
            bos_token_id=None,
            pad_token_id=0,
            tie_word_embeddings=True,
        )
    ).save_pretrained(path)
    words = Tokenizer(
        models.WordLevel(
            {
                word: n
                for n, word in enumerate(["<pad>", "</s>", "The", "quick", "brown", "fox", "<unk>", "jumps"])
            },
            unk_token="<unk>",
        )
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(path)
    return path


def adapter(base: Path, out: Path, **options: Any) -> Path:
    """A LoRA directory saved by PEFT, with nonzero B."""
    reward = options.get("task_type") == "SEQ_CLS"
    auto, more = (
        (AutoModelForSequenceClassification, {"num_labels": 1}) if reward else (AutoModelForCausalLM, {})
    )
    torch.manual_seed(1)
    model = get_peft_model(
        auto.from_pretrained(base, **more),
        LoraConfig(
            **{
                "r": 2,
                "lora_alpha": 8,
                "target_modules": "all-linear",
                "task_type": "CAUSAL_LM",
                "init_lora_weights": False,
                **options,
            }
        ),
    )
    model.save_pretrained(out)
    return out


def fetched(source: str, work: Path, **options: Any) -> dict[str, Any]:
    job = SimpleNamespace(
        options={"source": source, "sha256": None, "format": "auto", **options},
        work=SimpleNamespace(progress=work / "progress", product=work / "product"),
    )
    job.work.progress.mkdir(parents=True)
    return fetch_model(job)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}, {"task_type": "SEQ_CLS"}])
def test_merged_adapter_equals_peft(base: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    lora_model = adapter(base, tmp_path / "adapter", **options)
    assert is_adapter(lora_model) and base_of(lora_model) == f"path:{base}" == base_address(
        f"path:{lora_model}", None
    )
    found = fetched(f"path:{lora_model}", tmp_path / "work")
    reward = "task_type" in options
    auto, more = (
        (AutoModelForSequenceClassification, {"num_labels": 1}) if reward else (AutoModelForCausalLM, {})
    )
    peft = PeftModel.from_pretrained(
        auto.from_pretrained(base, pad_token_id=0, **more), str(lora_model)
    ).eval()
    plain = auto.from_pretrained(base, pad_token_id=0, **more)
    ours = auto.from_pretrained(tmp_path / "work" / "product")
    with torch.no_grad():
        expected = peft(IDS).logits
        torch.testing.assert_close(ours(IDS).logits, expected, rtol=1e-5, atol=1e-5)
        assert (plain(IDS).logits - expected).abs().max() > 1e-2, (
            "the adapter changed nothing, so this shows nothing"
        )
    assert found["base"] == f"path:{base}" and (tmp_path / "work" / "product" / "tokenizer.json").is_file()
    assert type(ours.model.layers[0].self_attn.q_proj) is torch.nn.Linear


def test_an_adapter_of_a_type_without_sdpa_is_merged(base: Path, tmp_path: Path) -> None:
    """transformers has no scaled_dot_product_attention for Gemma 2 and gpt-oss."""
    gemma = tmp_path / "gemma"
    shutil.copytree(base, gemma)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Gemma2Config(vocab_size=8, head_dim=8, num_key_value_heads=1, **sizes, pad_token_id=0)
    Gemma2ForCausalLM(config).save_pretrained(gemma)
    merge_adapter(adapter(gemma, tmp_path / "adapter"), gemma, tmp_path / "merged")
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(gemma), str(tmp_path / "adapter"))
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(ours(IDS).logits, peft(IDS).logits, rtol=1e-4, atol=1e-4)


def test_merged_weights_equal_w_plus_scaled_ba(base: Path, tmp_path: Path) -> None:
    lora_model = adapter(base, tmp_path / "adapter")
    fetched(f"path:{lora_model}", tmp_path / "work")
    tensors, name = load_file(lora_model / "adapter_model.safetensors"), "model.layers.1.mlp.up_proj"
    a, b = (tensors[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    before, after = (
        load_file(path / "model.safetensors")[f"{name}.weight"]
        for path in (base, tmp_path / "work" / "product")
    )
    torch.testing.assert_close(after, before + 8 / 2 * b @ a)


def test_saved_adapter_is_independent_of_the_base_path(base: Path, tmp_path: Path) -> None:
    for name in ("here", "there"):
        shutil.copytree(base, tmp_path / name)
        adapter(tmp_path / name, tmp_path / f"{name}-adapter")
        save_adapter(
            PeftModel.from_pretrained(
                AutoModelForCausalLM.from_pretrained(tmp_path / name), str(tmp_path / f"{name}-adapter")
            ),
            tmp_path / f"{name}-saved",
        )
    one, other = (
        {file.name: file.read_bytes() for file in (tmp_path / f"{name}-saved").iterdir()}
        for name in ("here", "there")
    )
    assert one == other and set(one) == {"adapter_config.json", "adapter_model.safetensors"}
    with pytest.raises(SourceError, match=r"models\.<name>\.base"):
        base_of(tmp_path / "here-saved")
    fetched(f"path:{tmp_path / 'here-saved'}", tmp_path / "work", base=f"path:{base}")


def test_recipe_base_overrides_adapter_config(base: Path, tmp_path: Path) -> None:
    lora_model = adapter(base, tmp_path / "adapter")
    config = json.loads((lora_model / "adapter_config.json").read_text())
    (lora_model / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": "/gone/away"})
    )
    with pytest.raises(SourceError, match=r"'/gone/away', .*models\.<name>\.base"):
        fetched(f"path:{lora_model}", tmp_path / "first")
    assert fetched(f"path:{lora_model}", tmp_path / "second", base=f"path:{base}")["base"] == f"path:{base}"
    (lora_model / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": "org/name", "revision": "v1"})
    )
    assert base_of(lora_model) == "hub:org/name@v1"


def test_unmergeable_adapter_is_refused(base: Path, tmp_path: Path) -> None:
    lora_model = adapter(base, tmp_path / "adapter")
    weights, tensors = (
        lora_model / "adapter_model.safetensors",
        load_file(lora_model / "adapter_model.safetensors"),
    )
    save_file({key.replace("layers.1.", "layers.7."): tensor for key, tensor in tensors.items()}, weights)
    with pytest.raises(SourceError, match=r"base_model\.model\.model\.layers\.1"):
        fetched(f"path:{lora_model}", tmp_path / "other")
    weights.rename(lora_model / "adapter_model.bin")
    with pytest.raises(SourceError, match="pickle"):
        fetched(f"path:{lora_model}", tmp_path / "pickled")
    config = json.loads((lora_model / "adapter_config.json").read_text())
    (lora_model / "adapter_config.json").write_text(json.dumps({**config, "peft_type": "PROMPT_TUNING"}))
    with pytest.raises(SourceError, match=r"PROMPT_TUNING"):
        fetched(f"path:{lora_model}", tmp_path / "prompt")
    with pytest.raises(SourceError, match="LoRA"):
        fetched(f"path:{base}", tmp_path / "plain", base="hub:org/name")
