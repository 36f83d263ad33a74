"""Static checks of local model directories, without importing torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.components.errors import RecipeError, SourceError
from ratchet.components.models.lora import CONFIG, WEIGHTS, base_of, is_adapter
from ratchet.components.recipes.arms import arms
from ratchet.components.recipes.changed_rounds import with_rounds
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.schema import Groups, Recipe, Reward, Source
from ratchet.components.recipes.splits import (
    KINDS,
    kind_of,
)

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
GPT2_KEYS = {
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "n_embd": "hidden_size",
}
LEARNED_POSITIONS = ("gpt2", "gpt_bigcode", "gpt_neo", "opt")
"""Types with a table of positions: a longer row is an index error, where a rotary embedding goes on."""
HEADLESS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model")
LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")  # of a decoder's tensors
REWARD_HEAD = "reward_head.st"  # `components/models/reward.py`, which imports torch


def check_folder(path: Path, name: str, model: Source, *, base: bool = False) -> dict[str, Any]:
    """The config.json of a local model directory, empty for GGUF files and adapters. `SourceError` if
    something is not there that the run would miss. `base`: the base model of the adapter `model`, which may
    have its own tokenizer.
    """
    kind = "auto" if base else model.format
    ggufs = [path] if path.suffix == ".gguf" else list(path.glob("*.gguf"))
    if kind == "gguf" or (kind == "auto" and ggufs):
        if not ggufs:
            raise SourceError(f"{path} holds no .gguf file, which `format: gguf` expects")
        for file in ggufs:
            with file.open("rb") as opened:
                if (start := opened.read(4)) != b"GGUF":
                    raise SourceError(f"{file} is not a GGUF file: it begins with {start!r}, not b'GGUF'")
        return {}
    if not path.is_dir():
        raise SourceError(
            f"{path} is a file; expected a folder with config.json, tokenizer.json and *.safetensors, or "
            "a .gguf file"
        )
    if is_adapter(path):
        if not (path / WEIGHTS).is_file():
            raise SourceError(
                f"{path} holds {CONFIG} but no {WEIGHTS}{_pickles(path)}; save it again with peft's "
                "save_pretrained"
            )
        _tensors(path / WEIGHTS)  # has its whole size
        if not model.base:
            base_of(path)
        return {}
    config = _config(path)
    _check_weights(path)
    check_layers(path, config)
    if base:
        return config
    if not any(
        (path / file).is_file() for file in (*TOKENIZERS, *(["vocab.txt"] if name == "encoder" else []))
    ):
        raise SourceError(
            f"{path} has no tokenizer; expected tokenizer.json next to config.json: "
            "tokenizer.save_pretrained writes it"
        )
    if (path / "tokenizer.json").is_file():
        _object(path / "tokenizer.json")
    if name != "encoder" and not _has_template(path):
        raise SourceError(
            f"{path}: the tokenizer has no chat template; put a chat_template.jinja next to "
            "tokenizer.json, or use an instruct model"
        )
    if model.role == "reward" and not (path / REWARD_HEAD).is_file():
        classes, labels = (
            config.get("architectures") or ["no architecture"],
            config.get("num_labels") or len(config.get("id2label") or (0, 1)),
        )
        if labels != 1 or not any(str(name).endswith("ForSequenceClassification") for name in classes):
            raise SourceError(
                f"{path}: `role: reward` expects a sequence classifier with one label (num_labels 1), got "
                f"{', '.join(map(str, classes))} "
                f"with {labels}; use a reward model"
            )
    return config


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        raise SourceError(
            f"{path} holds no config.json; expected a Hugging Face model directory (config.json, "
            "tokenizer.json, *.safetensors), "
            "as save_pretrained writes it, or a GGUF file"
        )
    return _object(file)


def _object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise SourceError(f"{file} holds a JSON {type(content).__name__}, expected an object")
    return content


def _has_template(path: Path) -> bool:
    settings = path / "tokenizer_config.json"
    return any((path / name).exists() for name in TEMPLATES) or (
        settings.is_file() and bool(_object(settings).get("chat_template"))
    )


def _check_weights(path: Path) -> None:
    """Weights are in safetensors, and every file that an index names is there."""
    if not any(path.glob("*.safetensors")):
        raise SourceError(
            f"{path} holds no *.safetensors{_pickles(path)}; save the model again with save_pretrained"
        )
    index = path / "model.safetensors.index.json"
    named = set()
    if index.is_file():
        weights = _object(index).get("weight_map")
        if not isinstance(weights, dict):
            raise SourceError(
                f"{index} has no weight_map, an object of tensor and file; copy the model again"
            )
        named = {str(name) for name in weights.values()}
    if missing := sorted(name for name in named if not (path / name).is_file()):
        raise SourceError(
            f"{path}: {index.name} names {missing[0]}, which is not there ({len(missing)} of {len(named)} "
            "files are missing); copy the whole model"
        )


def check_layers(path: Path, config: Mapping[str, Any]) -> None:
    """The safetensors files have their whole size and every layer of config.json: transformers would load
    random ones in place of others.
    """
    names = [name for file in sorted(path.glob("*.safetensors")) for name in _tensors(file)]
    found = [int(match[1]) for name in names if (match := LAYER.search(name))]
    layers = config.get("num_hidden_layers") or config.get("n_layer")
    if found and isinstance(layers, int) and max(found) + 1 < layers:
        raise SourceError(
            f"{path}: config.json says {layers} layers, but the safetensors files have {max(found) + 1}; "
            "copy the whole model, or correct config.json"
        )


def _tensors(file: Path) -> list[str]:
    """Names of the tensors in a safetensors file. `SourceError` if it has not the size that its header gives,
    as half a download or a Git LFS pointer.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        head = opened.read(length) if 8 + length <= size else b""
    try:
        tensors = json.loads(head)
        ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
    except (ValueError, AttributeError, KeyError, TypeError, IndexError):
        raise SourceError(
            f"{file} is not a whole safetensors file ({size:,} bytes); copy or download it again, with "
            "`git lfs pull` where it is a pointer of Git LFS"
        ) from None
    if (expected := 8 + length + max(ends, default=0)) != size:
        raise SourceError(
            f"{file} has {size:,} bytes, but its header needs {expected:,}; copy or download it again"
        )
    return [name for name in tensors if name != "__metadata__"]


def _pickles(path: Path) -> str:
    pickle = next(
        (file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in path.glob(pattern)), None
    )
    return f" (pickles such as {pickle} are never read)" if pickle else ""


def check_model(recipe: Recipe, config: Mapping[str, Any], where: str) -> None:
    """The policy of this config.json is a language model, and layers and lengths in the recipe fit it. Raises
    `RecipeError`.
    """
    if recipe.models["policy"].role != "reward" and _speaks(recipe):
        _check_output_layer(config, where)
    config = config.get("text_config") or config
    config = {**config, **{name: config[own] for own, name in GPT2_KEYS.items() if own in config}}
    layers, window = config.get("num_hidden_layers"), config.get("max_position_embeddings")
    wanted = {}
    for at, section in with_rounds(recipe):
        if fit := getattr(section, "fit", None):
            kept = getattr(section, "layers", None)  # a reward model keeps the first layers
            most = min(kept or layers, layers) if layers else layers
            wanted |= {
                f"{at}.fit.adapter.count": (fit.adapter.get("count", 0), most),
                f"{at}.fit.adapter.rank": (fit.adapter.get("rank", 0), config.get("hidden_size")),
            }
    for key, (count, most) in wanted.items():
        if most is not None and count > most:
            what = "a hidden size of" if key.endswith("rank") else "layers:"
            raise RecipeError(
                f"{key}: got {count}, but the model has {what} {most} ({where}); expected {most} or fewer"
            )
    answers = {}
    for at, section in with_rounds(recipe):
        rollout = getattr(section, "rollout", None) or {}
        for option in ("max_tokens", "max_length"):  # of an answer, and of an episode of several
            if option in rollout:
                answers[f"{at}.rollout.{option}"] = (section.data, rollout[option])
    for name, arm in arms(recipe).items():
        at = f"evaluate.arms.{name}.rollout" if recipe.evaluate and recipe.evaluate.arms else "evaluate"
        for option in {"max_tokens", "max_length"} & set(arm.rollout):
            answers[f"{at}.{option}"] = (arm.data, arm.rollout[option])
    for key, (data, answer) in answers.items():
        prompt = prompt_tokens(recipe, data)
        if window is not None and prompt is not None and prompt + answer > window:
            raise RecipeError(
                f"{key}: got {answer}, which with the longest prompt (data.{data}.max_tokens: {prompt}) "
                "exceeds the model's context length of "
                f"{window} tokens ({where}); "
                + (
                    f"expected {window - prompt} or fewer"
                    if prompt < window
                    else f"lower data.{data}.max_tokens first"
                )
            )
    for at, section in with_rounds(recipe) if config.get("model_type") in LEARNED_POSITIONS else ():
        longest = getattr(section, "max_tokens", None)
        if getattr(section, "fit", None) and longest and window and longest > window:
            raise RecipeError(
                f"{at}.max_tokens: got {longest}, but the model has {window} positions ({where}); expected "
                f"{window} or fewer"
            )


def _check_output_layer(config: Mapping[str, Any], where: str) -> None:
    if "AutoModelForCausalLM" in (config.get("auto_map") or ()):  # code of its own, as ChatGLMModel has
        return
    for made in map(str, config.get("architectures") or ()):
        if made.endswith(HEADLESS) and not made.endswith(("LMHeadModel", "DoubleHeadsModel")):
            raise RecipeError(
                f"{where}: got {made}, which has no output layer: transformers would add a random one; "
                "expected a language model such as LlamaForCausalLM"
            )


def _speaks(recipe: Recipe) -> bool:
    """Whether the policy's output layer is used: not where reward models alone are trained or certified."""
    return recipe.evaluate is not None or any(not isinstance(one.section, Reward) for one in sections(recipe))


def prompt_tokens(recipe: Recipe, data: str) -> int | None:
    """Most tokens of a prompt of a split, or of the split behind the groups of a phase. None if unknown."""
    for phase in reversed(sections(recipe)):
        if isinstance(phase.section, Groups) and data in phase.makes and phase.section.data != data:
            return prompt_tokens(recipe, phase.section.data)
    return recipe.data.of(data).max_tokens if kind_of(data) in KINDS else None
