"""Models as plain Hugging Face directories: config, safetensors, tokenizer with its template. Never a pickle."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ratchet.components.errors import SourceError
from ratchet.components.models.attention import register
from ratchet.components.models.products import speed_up
from ratchet.components.models.reward import FILE as REWARD_HEAD
from ratchet.components.models.reward import (
    MeanReward,
    StandardisedHead,
    as_token_classifier,
    load_reward_head,
    save_reward_head,
)
from ratchet.components.models.value import PolicyWithValue, load_value_head, save_value_head

REMOTE_CODE = "remote_code.txt"
"""Beside weights whose own code may be run: written by the fetch where `models.<name>.remote_code` says so, and with what is trained from them."""
PADS = ("<|pad|>", "<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|endoftext|>", "<unk>", "[UNK]")


def trusted(path: Path) -> bool:
    """Whether code that lies beside these weights may be run: everything that loads a model asks here. `SourceError` where a model
    cannot be loaded without it and may not."""
    allowed = (Path(path) / REMOTE_CODE).is_file()
    if not allowed and _own_classes(path):
        code = ", ".join(sorted(p.name for p in Path(path).glob("*.py"))) or "of another repository"
        raise SourceError(f"{path}: this type of model runs code of its own ({code}), and none is run unless the recipe says so; read that "
                          "code, then set models.<name>.remote_code: true, or take a model that transformers knows")
    return allowed


def _own_classes(path: Path) -> dict[str, str]:
    """The classes that a type of model unknown to transformers brings along, by the loader they are for."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    file = Path(path) / "config.json"
    config = json.loads(file.read_text()) if file.is_file() else {}
    return config.get("auto_map") or {} if config.get("model_type") not in CONFIG_MAPPING_NAMES else {}


def _runs_remote_code(loaded: Any) -> bool:
    return type(loaded).__module__.startswith("transformers_modules.")


def convert_gguf(file: Path, out: Path) -> None:
    """A GGUF file as a directory that AutoModelForCausalLM and AutoTokenizer load: float32 weights, pad ≠ eos.

    The quantised weights are what they are: Q4_1 carries about 4.5 bits a weight. Raises `SourceError`.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    file = Path(file)
    if not file.is_file():
        raise SourceError(f"{file}: there is no such GGUF file")
    try:
        with _read_once():
            model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
    except Exception as error:  # somebody's bytes: whoever trips over them raises what it likes, tokenizers a bare Exception
        raise SourceError(f"{file}: transformers cannot read this GGUF file ({type(error).__name__}: {error}); "
                          "use a model whose architecture transformers converts, or its safetensors") from error
    if not tokenizer.chat_template:
        raise SourceError(f"{file}: its metadata holds no chat template; take an instruct model")
    vocabulary = {token for token, number in tokenizer.get_vocab().items() if number < model.config.vocab_size}
    taken = {tokenizer.eos_token, tokenizer.bos_token}
    pad = next((t for t in (*PADS, tokenizer.unk_token) if t in vocabulary and t not in taken), None)
    if pad is None:
        raise SourceError(f"{file}: no special token is free to be the padding (eos {tokenizer.eos_token!r}); tried {', '.join(PADS)}")
    tokenizer.pad_token = pad
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model, "quantization_method"):
        del model.quantization_method
    config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")  # GGUF keeps 1e-5 as the float32 9.999999747e-06
    config.pad_token_id, config.eos_token_id, config.bos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id
    config.dtype = torch.float32
    config._name_or_path = file.stem
    model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id,
                                               bos_token_id=config.bos_token_id)
    save_model(model, tokenizer, out)
    if len(tokenizer) > config.vocab_size:
        _drop_tokens(Path(out) / "tokenizer.json", config.vocab_size)


def _drop_tokens(file: Path, size: int) -> None:
    """transformers gives every GPT-2 vocabulary an <|endoftext|>, which the file, and so the embedding, need not have."""
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < size]
    file.write_text(json.dumps(tokenizer, indent=2, ensure_ascii=False), encoding="utf-8")


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """transformers opens a GGUF file anew for the config, the weights and the tokenizer; its index takes five seconds to read."""
    import gguf

    plain = gguf.GGUFReader
    gguf.GGUFReader = functools.cache(plain)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        gguf.GGUFReader = plain  # type: ignore[misc]


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a model directory. `SourceError` when there is none."""
    from transformers import AutoTokenizer

    path = Path(path)
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise SourceError(f"{path}: holds no tokenizer (tokenizer.json expected); save it beside the weights")
    return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trusted(path))


def load_policy(path: Path, *, attention: str = "ratchet", dtype: torch.dtype = torch.float32) -> nn.Module:
    """The causal language model of a directory on the host, ready for plans (`attention="ratchet"`) or plain ("sdpa")."""
    from transformers import AutoModelForCausalLM

    return load_from(AutoModelForCausalLM, Path(path), attention, dtype)


def load_reward(path: Path, *, attention: str = "ratchet", dtype: torch.dtype = torch.float32) -> nn.Module:
    """The scalar reward model of a directory: a `MeanReward` where its head lies beside, else a sequence classifier with one label.
    The head is in float32 whatever the `dtype` of the rest: in bfloat16 a score has 8 bits, and many answers the same."""
    from transformers import AutoModel, AutoModelForSequenceClassification

    if (Path(path) / REWARD_HEAD).is_file():
        backbone = load_from(AutoModel, Path(path), attention, dtype)
        return MeanReward(backbone, load_reward_head(Path(path), backbone.config.hidden_size)).eval()
    model = load_from(AutoModelForSequenceClassification, Path(path), attention, dtype)
    if model.config.num_labels != 1 or not hasattr(model, "score"):
        raise SourceError(f"{path}: expected a sequence classifier with one label and a linear head `score`, as transformers makes of decoders; "
                          f"got {type(model).__name__} with num_labels {model.config.num_labels}")
    model.score.float()
    return model


def load_model(path: Path, kind: str, *, attention: str = "ratchet", dtype: torch.dtype = torch.float32) -> nn.Module:
    """`policy`, `policy_with_value` (a fresh head of zeros where none is saved beside) or `reward`, on the host; heads in float32."""
    if kind == "reward":
        return load_reward(path, attention=attention, dtype=dtype)
    policy = load_policy(path, attention=attention, dtype=dtype)
    if kind == "policy":
        return policy
    if kind == "policy_with_value":
        return PolicyWithValue(policy, load_value_head(Path(path), policy.config.hidden_size))
    raise ValueError(f"kind of model {kind!r}; expected policy, policy_with_value or reward")


def new_reward(policy_path: Path, *, layers: int | None = None, pool: Literal["last", "mean"] = "last", seed: int = 0,
               attention: str = "ratchet") -> nn.Module:
    """A reward model: the policy's first `layers` layers (all when None) under a new scalar head.

    `pool: last` is a plain sequence classifier, whose head is drawn with std 1/sqrt(hidden + 1) as in "Learning to summarize"
    (arXiv 2009.01325, section on reward models); `mean` is a `MeanReward`, whose head starts at 0.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    policy_path = Path(policy_path)
    config = AutoConfig.from_pretrained(policy_path, local_files_only=True, trust_remote_code=trusted(policy_path))
    have = config.num_hidden_layers
    if layers is not None and not 1 <= layers <= have:
        raise SourceError(f"{policy_path}: a reward model of {layers} layers was asked of a model with {have}; use 1 to {have}")
    config.num_hidden_layers = layers or have
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    config.num_labels, config.pad_token_id = 1, load_tokenizer(policy_path).pad_token_id
    if pool == "mean":
        return MeanReward(load_from(AutoModel, policy_path, attention, torch.float32, config=config), StandardisedHead(config.hidden_size)).eval()
    model = load_from(AutoModelForSequenceClassification, policy_path, attention, torch.float32, config=config)
    with torch.no_grad():
        drawn = torch.randn(model.score.weight.shape, generator=torch.Generator().manual_seed(seed))
        model.score.weight.copy_(drawn / (config.hidden_size + 1) ** 0.5)
    return model


@contextlib.contextmanager
def _deepspeed_left_out() -> Iterator[None]:
    """As it saves, transformers looks whether DeepSpeed wraps the model, and imports it for that, which imports a tracking client: a second and 60 MB
    in every process that learns. What was never imported wraps nothing."""
    if "deepspeed" in sys.modules or importlib.util.find_spec("deepspeed") is None:
        yield
        return
    from accelerate.utils import other

    there = other.is_deepspeed_available
    other.is_deepspeed_available = lambda: False
    try:
        yield
    finally:
        other.is_deepspeed_available = there


def save_model(model: nn.Module, tokenizer: Any, path: Path) -> None:
    """A plain directory. Every file is replaced whole, so a reader that maps the old weights keeps reading them."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".saving-", dir=path))
    try:
        plain = _plain(model)
        implementation = plain.config._attn_implementation
        plain.config._attn_implementation = "sdpa"
        try:
            with _deepspeed_left_out():
                plain.save_pretrained(beside)
        finally:
            plain.config._attn_implementation = implementation
        if isinstance(model, PolicyWithValue):
            save_value_head(model.value_head, beside)
        if isinstance(model, MeanReward):
            save_reward_head(model.score, beside)
        tokenizer.save_pretrained(beside)
        if _runs_remote_code(plain) or _runs_remote_code(tokenizer):  # transformers has saved the code too
            (beside / REMOTE_CODE).write_text("These weights were trained with code that the recipe let run.\n")
        for file in sorted(beside.iterdir()):
            file.chmod(0o644)  # safetensors writes files only their owner can read
            os.replace(file, path / file.name)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _plain(model: nn.Module) -> Any:
    """What transformers has a class for, of a model that is more than that."""
    if isinstance(model, PolicyWithValue):
        return model.policy
    return as_token_classifier(model) or model.backbone if isinstance(model, MeanReward) else model


def load_from(auto: Any, path: Path, attention: str, dtype: torch.dtype, **options: Any) -> nn.Module:
    """The model of a directory by one of transformers' auto classes, from safetensors alone."""
    if not (path / "config.json").is_file():
        raise SourceError(f"{path}: holds no config.json, so it is not a model directory")
    if not any(path.glob("*.safetensors")):
        raise SourceError(f"{path}: holds no weights (model.safetensors expected; pickles are never read)")
    own = _own_classes(path)
    if trusted(path) and own and auto.__name__ not in own:
        raise SourceError(f"{path}: its code has no {auto.__name__} (auto_map has {', '.join(sorted(own))}); add one, or take a model that "
                          "transformers knows")
    if attention == "ratchet":
        register()
    model = auto.from_pretrained(path, dtype=dtype, attn_implementation=attention, local_files_only=True,
                                 trust_remote_code=trusted(path), use_safetensors=True, **options)
    if attention == "ratchet" and _runs_remote_code(model) and not model._supports_attention_backend:
        raise SourceError(f"{path}: the code of {type(model).__name__} does not use transformers' attention interface, through which rows are "
                          "packed; take a model whose class says _supports_attention_backend")
    if attention == "ratchet":
        speed_up(model)
    return model.eval()
