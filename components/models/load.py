"""Loading and saving of models as Hugging Face directories: config, safetensors, tokenizer with chat
template. Pickles are never read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ratchet.components.errors import SourceError
from ratchet.components.models.attention import register
from ratchet.components.models.device import weights_in
from ratchet.components.models.families import is_family, load_family, save_family
from ratchet.components.models.images import load_image_processor, mark_tokenizer, takes_images
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
from ratchet.components.recipes.families import family_of
from ratchet.components.text.no_tokenizer import NoTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ratchet.components.text.tokenizer import Tokenizer

REMOTE_CODE = "remote_code.txt"
"""Marker file in model directories whose own Python code may run: written on download if
`models.<name>.remote_code` is set, and with models trained from them.
"""
PADS = ("<|pad|>", "<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|endoftext|>", "<unk>", "[UNK]")


def trusted(path: Path) -> bool:
    """Whether Python code in this model directory may run; all loading goes through this check.
    `SourceError` if the model cannot be loaded without its code and the code is not allowed.
    """
    allowed = (Path(path) / REMOTE_CODE).is_file()
    if not allowed and _own_classes(path):
        code = ", ".join(sorted(p.name for p in Path(path).glob("*.py"))) or "of another repository"
        raise SourceError(
            f"{path}: this model type runs code of its own ({code}), which the recipe does not allow; "
            "review that "
            "code, then set models.<name>.remote_code: true, or use a model supported by transformers"
        )
    return allowed


def _own_classes(path: Path) -> dict[str, str]:
    """`auto_map` of a model type unknown to transformers: loader -> its own class."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]

    file = Path(path) / "config.json"
    config = json.loads(file.read_text()) if file.is_file() else {}
    return config.get("auto_map") or {} if config.get("model_type") not in CONFIG_MAPPING_NAMES else {}


def _runs_remote_code(loaded: Any) -> bool:
    return type(loaded).__module__.startswith("transformers_modules.")


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model directory, or a `NoTokenizer` for a family without tokens. `SourceError` if
    there is none.
    """
    from transformers import AutoTokenizer

    path = Path(path)
    if family := family_of(path):
        return NoTokenizer(path, family["name"])  # pyright: ignore[reportReturnType]
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise SourceError(f"{path}: holds no tokenizer (tokenizer.json expected); save it beside the weights")
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trusted(path))
    return mark_tokenizer(tokenizer, path)


def load_policy(path: Path, *, attention: str = "ratchet", dtype: torch.dtype = torch.float32) -> nn.Module:
    """The causal language model of a directory, or its vision-language model, on CPU, with packed attention
    (`attention="ratchet"`) or plain ("sdpa").
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    auto = AutoModelForImageTextToText if takes_images(path) else AutoModelForCausalLM
    return load_from(auto, Path(path), attention, dtype)


def load_reward(path: Path, *, attention: str = "ratchet", dtype: torch.dtype = torch.float32) -> nn.Module:
    """The reward model of a directory: a `MeanReward` if its head is present, else a sequence classifier with
    one label. The head is always float32: in bfloat16 a score has 8 significant bits, and many answers would
    tie.
    """
    from transformers import AutoModel, AutoModelForSequenceClassification

    if (Path(path) / REWARD_HEAD).is_file():
        backbone = load_from(AutoModel, Path(path), attention, dtype)
        return MeanReward(backbone, load_reward_head(Path(path), hidden_size(backbone))).eval()
    model = load_from(AutoModelForSequenceClassification, Path(path), attention, dtype)
    labels = model.config.num_labels  # pyright: ignore[reportAttributeAccessIssue]
    if labels != 1 or not hasattr(model, "score"):
        raise SourceError(
            f"{path}: expected a sequence classifier with one label and a linear head `score`, as "
            "transformers builds for decoders; "
            f"got {type(model).__name__} with num_labels {labels}"
        )
    model.score.float()
    return model


def load_model(
    path: Path, kind: str, *, attention: str = "ratchet", dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Load `policy`, `policy_with_value` (zero-initialised head if none is saved) or `reward` on CPU; heads
    are float32. A directory with `family.json` is loaded by its family, in float32.
    """
    if family_of(path):
        return load_family(path, kind)
    if kind == "reward":
        return load_reward(path, attention=attention, dtype=dtype)
    policy = load_policy(path, attention=attention, dtype=dtype)
    if kind == "policy":
        return policy
    if kind == "policy_with_value":
        return PolicyWithValue(policy, load_value_head(Path(path), hidden_size(policy)))
    raise ValueError(f"kind of model {kind!r}; expected policy, policy_with_value or reward")


def new_reward(
    policy_path: Path,
    *,
    layers: int | None = None,
    pool: Literal["last", "mean"] = "last",
    seed: int = 0,
    attention: str = "ratchet",
) -> nn.Module:
    """A new reward model: the first `layers` layers of the policy (all if None) with a new scalar head.

    `pool: last` is a sequence classifier, head initialised with std 1/sqrt(hidden + 1) as in "Learning to
    summarize" (arXiv 2009.01325, section on reward models); `mean` is a `MeanReward`, head initialised to 0.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    policy_path = Path(policy_path)
    config = AutoConfig.from_pretrained(
        policy_path, local_files_only=True, trust_remote_code=trusted(policy_path)
    )
    text = config.get_text_config()
    have = text.num_hidden_layers
    if layers is not None and not 1 <= layers <= have:
        raise SourceError(
            f"{policy_path}: the reward model needs {layers} layers but the model has {have}; use 1 to {have}"
        )
    text.num_hidden_layers = layers or have
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[: text.num_hidden_layers]
    config.num_labels, config.pad_token_id = 1, load_tokenizer(policy_path).pad_token_id
    if pool == "mean":
        return MeanReward(
            load_from(AutoModel, policy_path, attention, torch.float32, config=config),
            StandardisedHead(text.hidden_size),
        ).eval()
    if takes_images(policy_path):
        raise SourceError(f"{policy_path}: a reward model of a vision-language model needs `pool: mean`")
    model = load_from(
        AutoModelForSequenceClassification, policy_path, attention, torch.float32, config=config
    )
    with torch.no_grad():
        drawn = torch.randn(model.score.weight.shape, generator=torch.Generator().manual_seed(seed))  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue, reportCallIssue]
        model.score.weight.copy_(drawn / (config.hidden_size + 1) ** 0.5)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    return model


@contextlib.contextmanager
def _deepspeed_left_out() -> Iterator[None]:
    """Hide DeepSpeed from transformers while saving: its check for a DeepSpeed engine would import DeepSpeed
    and a tracking client (a second and 60 MB per process) although DeepSpeed was never used.
    """
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


def save_model(
    model: nn.Module, tokenizer: Tokenizer, path: Path, dtype: torch.dtype = torch.float32
) -> None:
    """Save a Hugging Face directory with weights in `dtype`. Files are replaced atomically, so processes that
    memory-map the old weights keep reading them.
    """
    if is_family(model):
        return save_family(model, path)
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".saving-", dir=path))
    try:
        plain = _plain(model)
        implementation = _attention_of(plain.config)
        plain.config._attn_implementation = "sdpa"
        try:
            with _deepspeed_left_out():
                plain.save_pretrained(beside, state_dict=weights_in(plain, dtype))
        finally:
            plain.config._attn_implementation = implementation
        if isinstance(model, PolicyWithValue):
            save_value_head(model.value_head, beside)
        if isinstance(model, MeanReward):
            save_reward_head(model.score, beside)
        tokenizer.save_pretrained(beside)
        if hasattr(plain, "image_processor"):
            plain.image_processor.save_pretrained(beside)
        if _runs_remote_code(plain) or _runs_remote_code(tokenizer):  # transformers also saved the code
            (beside / REMOTE_CODE).write_text(
                "These weights were trained with code that the recipe let run.\n"
            )
        for file in sorted(beside.iterdir()):
            file.chmod(0o644)  # safetensors creates files with mode 0600
            file.replace(path / file.name)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def hidden_size(model: nn.Module) -> int:
    """Size H of the hidden states of a transformers model's language model."""
    return model.config.get_text_config().hidden_size  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]


def _attention_of(config: PreTrainedConfig) -> dict[str, str | None]:
    """The attention implementation of a model and of each part with a config of its own, as the config takes
    it.
    """
    parts = {name: getattr(config, name)._attn_implementation for name in config.sub_configs}
    return {"": config._attn_implementation, **parts}


def _plain(model: nn.Module) -> Any:
    """The part of a model that is a transformers class."""
    if isinstance(model, PolicyWithValue):
        return model.policy
    return as_token_classifier(model) or model.backbone if isinstance(model, MeanReward) else model


def load_from(auto: Any, path: Path, attention: str, dtype: torch.dtype, **options: Any) -> nn.Module:
    """Load a model directory with one of transformers' auto classes, from safetensors only."""
    if not (path / "config.json").is_file():
        raise SourceError(f"{path}: holds no config.json; expected a Hugging Face model directory")
    if not any(path.glob("*.safetensors")):
        raise SourceError(f"{path}: holds no weights (model.safetensors expected; pickles are never read)")
    own = _own_classes(path)
    if trusted(path) and own and auto.__name__ not in own:
        raise SourceError(
            f"{path}: its code has no {auto.__name__} (auto_map has {', '.join(sorted(own))}); add one, "
            "or use a model supported by transformers"
        )
    if attention == "ratchet":
        register()
    sees = takes_images(path)
    model = auto.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation={"": attention, "text_config": attention, "vision_config": "sdpa"}
        if sees
        else attention,
        local_files_only=True,
        trust_remote_code=trusted(path),
        use_safetensors=True,
        **options,
    )
    if attention == "ratchet" and _runs_remote_code(model) and not model._supports_attention_backend:
        raise SourceError(
            f"{path}: {type(model).__name__} does not use transformers' attention interface, which packing "
            "needs; use a model whose class sets _supports_attention_backend"
        )
    if attention == "ratchet":
        speed_up(model)
    if sees:
        model.image_processor = load_image_processor(path)
    return model.eval()
