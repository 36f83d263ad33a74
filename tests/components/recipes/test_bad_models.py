"""Catalogue of bad model folders: `path:` models that a run would stop at are refused before anything
starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import RatchetError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.recipe import load

CAUSAL = json.dumps(
    {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "max_position_embeddings": 2048}
)
SCORER = json.dumps({"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "score"}})
PAIR = json.dumps({"architectures": ["LlamaForSequenceClassification"]})  # transformers' default: two labels
NO_TENSORS = "\x02" + 7 * "\0" + "{}"  # a whole safetensors file without tensors
ONE_TENSOR = '{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
HALF = chr(len(ONE_TENSOR)) + 7 * "\0" + ONE_TENSOR + "1234"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 538090408\n"
WHOLE = {
    "config.json": CAUSAL,
    "tokenizer.json": "{}",
    "chat_template.jinja": "x",
    "model.safetensors": NO_TENSORS,
}
SHARDS = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
ADAPTER = {
    "adapter_config.json": json.dumps({"peft_type": "LORA", "base_model_name_or_path": "org/base"}),
    "adapter_model.safetensors": NO_TENSORS,
}
REWARD = {"role": "reward"}


def but(*without: str, **files: str) -> dict[str, str]:
    return {name: text for name, text in {**WHOLE, **files}.items() if name not in without}


BAD: dict[str, tuple[Mapping[str, str], Mapping[str, Any], str]] = {
    "a readme alone": (
        {"readme.md": "x"},
        {},
        "holds no config.json; expected a Hugging Face model directory",
    ),
    "broken config": (but(**{"config.json": "{"}), {}, "config.json is not valid JSON"),
    "no tokenizer": (
        but("tokenizer.json"),
        {},
        "has no tokenizer; expected tokenizer.json next to config.json",
    ),
    "no chat template": (
        but("chat_template.jinja", **{"tokenizer_config.json": "{}"}),
        {},
        "the tokenizer has no chat template",
    ),
    "pickled weights": (
        but("model.safetensors", **{"pytorch_model.bin": ""}),
        {},
        "holds no *.safetensors (pickles such as pytorch_model.bin are never read)",
    ),
    "a missing shard": (
        but(
            "model.safetensors", **{"model.safetensors.index.json": SHARDS, "model-1.safetensors": NO_TENSORS}
        ),
        {},
        "names model-2.safetensors, which is not there (1 of 2 files are missing)",
    ),
    "a causal model as a reward model": (
        WHOLE,
        REWARD,
        "expects a sequence classifier with one label (num_labels 1), got LlamaForCausalLM with 2",
    ),
    "a classifier of two labels": (
        but(**{"config.json": PAIR}),
        REWARD,
        "got LlamaForSequenceClassification with 2",
    ),
    "no GGUF": (WHOLE, {"format": "gguf"}, "holds no .gguf file"),
    "a pickled adapter": (
        {**ADAPTER, "adapter_model.safetensors": None},
        {},
        "holds adapter_config.json but no adapter_model.safetensors",
    ),
    "an adapter without a base": (
        {**ADAPTER, "adapter_config.json": "{}"},
        {},
        "adapter_config.json names no base model",
    ),
}
FIRST_LAYER = '{"model.layers.0.w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}'
BAD |= {
    "a layer less than in config.json": (
        but(**{"model.safetensors": chr(len(FIRST_LAYER)) + 7 * "\0" + FIRST_LAYER}),
        {},
        "config.json says 2 layers, but the safetensors files have 1",
    ),
    "a pointer of Git LFS": (
        but(**{"model.safetensors": POINTER}),
        {},
        "model.safetensors is not a whole safetensors file (74 bytes); copy or download it again, with `git",
    ),
    "half a download": (
        but(**{"model.safetensors": HALF}),
        {},
        f"has {len(HALF)} bytes, but its header needs {len(HALF) + 4}",
    ),
    "an empty adapter": ({**ADAPTER, "adapter_model.safetensors": ""}, {}, "is not a whole safetensors file"),
    "a broken index": (
        but(**{"model.safetensors.index.json": "{"}),
        {},
        "model.safetensors.index.json is not valid JSON",
    ),
    "an index of nothing": (
        but(**{"model.safetensors.index.json": "{}"}),
        {},
        "model.safetensors.index.json has no weight_map",
    ),
    "a broken tokenizer": (but(**{"tokenizer.json": "{"}), {}, "tokenizer.json is not valid JSON"),
    "an empty template": (
        but("chat_template.jinja", **{"tokenizer_config.json": '{"chat_template": null}'}),
        {},
        "the tokenizer has no chat template",
    ),
    "another file named GGUF": ({"model.gguf": "PK"}, {}, "is not a GGUF file: it begins with b'PK'"),
    "a file in place of a folder": (
        {"weights.bin": "x"},
        {"source": "path:model/weights.bin"},
        "weights.bin is a file; expected a folder with config.json",
    ),
}
GOOD: dict[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "as transformers saves it": (WHOLE, {}),
    "template in the tokenizer's settings": (
        but("chat_template.jinja", **{"tokenizer_config.json": '{"chat_template": "x"}'}),
        {},
    ),
    "a reward model": (but(**{"config.json": SCORER}), REWARD),
    "a mean-pooled one of an earlier run": (but(**{"reward_head.st": ""}), REWARD),
    "an adapter": (ADAPTER, {}),
    "GGUF": ({"model.gguf": "GGUF"}, {}),
}


def given(folder: Path, files: Mapping[str, str | None], model: Mapping[str, Any]) -> Path:
    (folder / "model").mkdir()
    for name, text in files.items():
        if text is not None:
            (folder / "model" / name).write_text(text)
    models = {"mine" if model.get("role") else "policy": {"source": "path:model", "format": "auto", **model}}
    (folder / "mine.yaml").write_text(
        json.dumps({"schema": 1, "base": "sft", "about": "mine", "models": models})
    )
    return folder / "mine.yaml"


@pytest.mark.parametrize("case", BAD)
def test_a_bad_model_folder_is_one_sentence(case: str, tmp_path: Path) -> None:
    files, model, error_text = BAD[case]
    with pytest.raises(RatchetError) as refused:
        check_files(load(given(tmp_path, files, model))[0])
    message = str(refused.value)
    assert (
        message.startswith(f"models.{'mine' if model.get('role') else 'policy'}.source: ")
        and error_text in message
        and "\n" not in message
    )


def refused(folder: Path, config: Mapping[str, Any], **sections: Any) -> str:
    """The error of a recipe whose policy has this config.json; empty if there is none."""
    given(folder, but(**{"config.json": json.dumps(config)}), {})
    recipe = json.loads((folder / "mine.yaml").read_text())
    (folder / "mine.yaml").write_text(json.dumps(recipe | sections))
    try:
        check_files(load(folder / "mine.yaml")[0])
    except RatchetError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "name", ["LlamaForSequenceClassification", "LlamaModel", "Qwen2ForTokenClassification"]
)
def test_a_policy_without_an_output_layer_is_refused(name: str, tmp_path: Path) -> None:
    """transformers would load it with a random one, a new one in each stage."""
    assert f"got {name}, which has no output layer" in refused(tmp_path, {"architectures": [name]})


def test_a_causal_model_of_own_code_may_have_any_name(tmp_path: Path) -> None:
    own = {"AutoModelForCausalLM": "modeling_chatglm.ChatGLMForConditionalGeneration"}
    assert not refused(tmp_path, {"architectures": ["ChatGLMModel"], "auto_map": own})


def test_a_backbone_may_become_a_reward_model(tmp_path: Path) -> None:
    """As `ratchet certify` reads one; its output layer is not used."""
    assert not refused(tmp_path, {"architectures": ["LlamaModel"]}, base="reward_model", evaluate=None)


def test_lengths_of_gpt2_are_checked_by_its_own_keys(tmp_path: Path) -> None:
    gpt2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": 512, "n_layer": 2}
    for number, (sections, error) in enumerate(
        [
            ({}, ""),
            (
                {"evaluate": {"max_tokens": 300}},
                "context length of 512 tokens (models.policy.source); expected 256",
            ),
            ({"data": {"evaluate": {"max_tokens": 600}}}, "lower data.evaluate.max_tokens first"),
            ({"sft": {"max_tokens": 600}}, "sft.max_tokens: got 600, but the model has 512 positions"),
            (
                {"sft": {"fit": {"adapter": {"name": "top_layers", "count": 3}}}},
                "but the model has layers: 2",
            ),
        ]
    ):
        (folder := tmp_path / str(number)).mkdir()
        found = refused(folder, gpt2, **sections)
        assert error in found and bool(error) == bool(found), found


@pytest.mark.parametrize("case", GOOD)
def test_a_whole_model_folder_passes(case: str, tmp_path: Path) -> None:
    check_files(load(given(tmp_path, *GOOD[case]))[0])


def test_a_model_of_an_earlier_run_passes(tiny_model: Path, tmp_path: Path) -> None:
    check_files(load(given(tmp_path, {}, {"source": f"path:{tiny_model}"}))[0])
