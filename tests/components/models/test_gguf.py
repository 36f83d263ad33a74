"""GGUF conversion against the original model: same logits, tokens and end-of-turn tokens."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch

from ratchet.components.errors import SourceError
from ratchet.components.models.gguf import convert_gguf
from ratchet.components.models.load import load_policy, load_tokenizer
from ratchet.components.text.contract import contract_of

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write(model: Path, out: Path, *, template: str | None = "", pad: str = "<|pad|>") -> Path:
    """The Llama of a directory as llama.cpp writes it: rotary halves of queries and keys interleaved,
    float32.
    """
    policy, tokenizer = load_policy(model, attention="sdpa"), load_tokenizer(model)
    config, tokens = policy.config, json.loads((model / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    special = {token["content"] for token in tokens["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token if token != "<|pad|>" else pad for token, _ in vocabulary])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token, _ in vocabulary]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokens["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.convert_tokens_to_ids("<|im_start|>"))
    writer.add_eos_token_id(tokenizer.eos_token_id)
    if template is not None:
        writer.add_chat_template(template or tokenizer.chat_template)
    for name, tensor in policy.state_dict().items():
        parts = name.removesuffix(".weight").split(".")
        if name == "lm_head.weight":  # the embedding again
            continue
        if parts[1] == "layers":
            if parts[-1] in ("q_proj", "k_proj"):
                heads = tensor.shape[0] // config.head_dim
                tensor = tensor.view(heads, 2, config.head_dim // 2, -1).transpose(1, 2).reshape(tensor.shape)
            writer.add_tensor(
                f"blk.{parts[2]}.{NAMES['.'.join(parts[3:])]}.weight", tensor.contiguous().numpy()
            )
        else:
            writer.add_tensor(
                {"embed_tokens": "token_embd", "norm": "output_norm"}[parts[1]] + ".weight", tensor.numpy()
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def test_converted_gguf_gives_the_models_logits(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    plain = gguf.GGUFReader

    def reader(path: str) -> gguf.GGUFReader:
        opened.append(path)
        return plain(path)

    monkeypatch.setattr(gguf, "GGUFReader", reader)
    convert_gguf(write(tiny_model, tmp_path / "tiny.gguf"), tmp_path / "out")
    assert len(opened) == 1 and gguf.GGUFReader is reader, (
        "its index, which takes seconds to read, is read once"
    )
    ours, theirs = load_tokenizer(tmp_path / "out"), load_tokenizer(tiny_model)
    messages = [{"role": "user", "content": "tell me about the sea"}]
    text = ours.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    tokens = ours(text, add_special_tokens=False)["input_ids"]
    assert tokens == theirs(text, add_special_tokens=False)["input_ids"]
    assert contract_of(tmp_path / "out") == contract_of(tiny_model) and ours.pad_token == "<|pad|>"
    with torch.inference_mode():
        mine, origin = (
            load_policy(path, attention="sdpa")(torch.tensor([tokens])).logits
            for path in (tmp_path / "out", tiny_model)
        )
    assert torch.allclose(mine, origin, atol=1e-4) and float(origin.std()) > 0.1


def test_unsupported_gguf_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="GGUF"):
        convert_gguf(tmp_path / "none.gguf", tmp_path / "out")
    with pytest.raises(SourceError, match="no chat template"):
        convert_gguf(write(tiny_model, tmp_path / "plain.gguf", template=None), tmp_path / "out")
    with pytest.raises(SourceError, match="pad"):
        convert_gguf(write(tiny_model, tmp_path / "unpadded.gguf", pad="<|other|>"), tmp_path / "out")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, or so it says")
    with pytest.raises(SourceError, match="GGUF"):
        convert_gguf(tmp_path / "broken.gguf", tmp_path / "out")
    whole = write(tiny_model, tmp_path / "bent.gguf").read_bytes()
    (tmp_path / "bent.gguf").write_bytes(
        whole.replace("Ġcoffee".encode(), "Ġcoffef".encode(), 1)
    )  # a token that its merges still name
    with pytest.raises(SourceError, match=r"GGUF .*out of vocabulary"):
        convert_gguf(tmp_path / "bent.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
