"""Tokenizer contracts: a stage starts only if its inputs agree on the tokenizer, and records its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from ratchet.components.errors import ContractError, SourceError
from ratchet.components.models.tiny import TEMPLATE, _tokenizer
from ratchet.components.stages.run import as_request, execute
from ratchet.components.text.contract import agree, contract, contract_of, record
from ratchet.components.types import Artifact


class _Config(SimpleNamespace):
    """A model config of a language model alone."""

    def get_text_config(self) -> _Config:
        return self


def save(
    path: Path,
    change: Callable[[Any], None] = lambda tokenizer: None,
    *,
    dtype: torch.dtype = torch.float32,
    claimed: torch.dtype | None = None,
) -> Path:
    """A model directory of hardly any weights, its tokenizer changed."""
    tokenizer = _tokenizer(0)
    change(tokenizer)
    tokenizer.save_pretrained(path)
    LlamaConfig(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=claimed,
    ).save_pretrained(path)
    save_file(
        {
            "layer": torch.zeros(2, 3, dtype=dtype),
            "router": torch.zeros(3),
            "mask": torch.zeros(2, dtype=torch.bool),
        },
        path / "model.safetensors",
    )
    return path


def other_template(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATE + " "


def other_eos(tokenizer: Any) -> None:
    tokenizer.eos_token = "<|im_start|>"


def other_vocabulary(tokenizer: Any) -> None:
    tokenizer.add_tokens(["new"])


def weights(path: Path, **meta: Any) -> Artifact:
    return Artifact("weights", path, path.name, meta=meta)


def groups(path: Path) -> Artifact:
    """Groups sampled by the model of a directory."""
    return Artifact("groups", path, "groups", meta=record(path / "none", contract_of(path)))


@pytest.mark.parametrize(
    ("change", "message"),
    [(other_template, "template"), (other_eos, "eos"), (other_vocabulary, "vocabulary")],
)
@pytest.mark.parametrize("name", ["reference", "initial", "previous", "groups", "teacher"])
def test_tokenizer_that_differs_from_the_policys_is_refused(
    change: Callable[[Any], None], message: str, name: str, tmp_path: Path
) -> None:
    mine, theirs = save(tmp_path / "mine"), save(tmp_path / "theirs", change)
    inputs = {"policy": weights(mine), name: groups(theirs) if name == "groups" else weights(theirs)}
    options = {"prepare": [{"name": "scoring.logprobs", "model": name}]}
    with pytest.raises(
        ContractError, match=rf"select: '{name}' .*theirs.* and 'policy' .*{message}: expected .*, got "
    ):
        agree("select", inputs, options)


@pytest.mark.parametrize("name", ["reference", "initial", "previous", "groups"])
def test_rounded_policy_is_refused_and_float32_training_accepted(name: str, tmp_path: Path) -> None:
    """Training a published bfloat16 model gives a float32 policy, which must be accepted."""
    paths = {
        dtype: save(tmp_path / str(dtype), dtype=dtype, claimed=dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }

    def agreed(policy: torch.dtype, other: torch.dtype) -> str:
        met = groups(paths[other]) if name == "groups" else weights(paths[other])
        contract = agree("optimise", {"policy": weights(paths[policy]), name: met}, {})
        assert contract
        return contract.dtype

    for other in paths:
        assert agreed(torch.float32, other) == "float32" and agreed(other, other) == str(other).removeprefix(
            "torch."
        )
    for policy, other in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float16, torch.bfloat16),
    ):
        names = str(policy).removeprefix("torch."), str(other).removeprefix("torch.")
        with pytest.raises(
            ContractError,
            match=rf"optimise: '{name}' .* and 'policy' .*dtype: expected '{names[0]}', got '{names[1]}'",
        ):
            agreed(policy, other)


def test_teacher_may_have_higher_precision(tmp_path: Path) -> None:
    inputs = {
        "policy": weights(save(tmp_path / "student", dtype=torch.bfloat16)),
        "teacher": weights(save(tmp_path / "teacher")),
    }
    assert agree("annotate", inputs, {"annotate": [{"name": "scoring.logprobs", "model": "teacher"}]})


def test_weights_must_match_the_config_dtype_and_be_unquantised(tmp_path: Path) -> None:
    assert (
        contract_of(save(tmp_path / "wider", dtype=torch.bfloat16, claimed=torch.float32)).dtype == "bfloat16"
    )
    assert contract_of(save(tmp_path / "silent", dtype=torch.bfloat16)).dtype == "bfloat16"
    with pytest.raises(ContractError, match=r"float32 .*bfloat16.*dtype.*'float32'"):
        contract_of(save(tmp_path / "lying", claimed=torch.bfloat16))
    for dtype in (torch.int8, torch.float8_e4m3fn):
        with pytest.raises(ContractError, match="quantised"):
            contract_of(save(tmp_path / str(dtype), dtype=dtype))
    (tmp_path / "silent" / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="no weights"):
        contract_of(tmp_path / "silent")


def test_matching_inputs_and_models_that_render_text_themselves_pass(tmp_path: Path) -> None:
    mine, same, theirs = (
        save(tmp_path / "mine"),
        save(tmp_path / "same"),
        save(tmp_path / "theirs", other_vocabulary),
    )
    inputs = {
        "policy": weights(mine),
        "reference": weights(same, **record(same, None)),
        "groups": groups(mine),
        "reward_model": weights(theirs),
        "base": weights(theirs),
        "teacher": weights(theirs),
        "data": Artifact("data", tmp_path, "data"),
    }
    assert agree(
        "select", inputs, {"prepare": [{"name": "scoring.logprobs", "model": "reference"}]}
    ) == contract_of(mine)
    assert agree("fetch_data", {}, {}) is None


def test_recorded_contract_is_used_without_reading_the_model(tmp_path: Path) -> None:
    mine, theirs = save(tmp_path / "mine"), save(tmp_path / "theirs", other_eos)
    noted = {
        "policy": weights(tmp_path / "gone", **record(mine, None)),
        "initial": weights(tmp_path / "gone", **record(theirs, None)),
    }
    with pytest.raises(ContractError, match="'initial'"):
        agree("annotate", noted, {})


def test_model_without_chat_template_has_no_contract(tmp_path: Path) -> None:
    agreed = contract_of(save(tmp_path / "mine"))
    encoder = save(tmp_path / "encoder", lambda tokenizer: setattr(tokenizer, "chat_template", None))
    assert record(encoder, agreed) == {}
    assert record(tmp_path, agreed) == {"contract": dataclasses.asdict(agreed)}
    assert record(tmp_path, None) == {}


def test_contract_is_checked_before_the_stage_reads_data(tmp_path: Path) -> None:
    inputs = {
        "policy": weights(save(tmp_path / "mine")),
        "groups": groups(save(tmp_path / "theirs", other_template)),
    }
    with pytest.raises(ContractError, match="optimise: 'groups'"):
        execute(as_request("optimise", {}, inputs, tmp_path / "work"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tokenizer: setattr(tokenizer, "chat_template", None), "chat template"),
        (
            lambda tokenizer: setattr(tokenizer, "pad_token", tokenizer.eos_token),
            "pad token .* must exist and differ from eos",
        ),
        (lambda tokenizer: setattr(tokenizer, "eos_token", None), "no eos_token"),
    ],
)
def test_unusable_tokenizer_is_an_error(change: Callable[[Any], None], message: str) -> None:
    tokenizer = _tokenizer(0)
    config = _Config(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    assert contract(tokenizer, config).eos == (tokenizer.eos_token_id,)
    with pytest.raises(ContractError, match="vocab"):
        contract(tokenizer, _Config(vocab_size=100, eos_token_id=tokenizer.eos_token_id))
    change(tokenizer)
    with pytest.raises(ContractError, match=message):
        contract(tokenizer, config)
