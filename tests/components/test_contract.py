"""A stage starts only when the tokens of its inputs mean the same, and notes what the tokens of its product mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig

from components.contract import agree, contract, contract_of, record
from components.errors import ContractError
from components.models.tiny import TEMPLATE, _tokenizer
from components.run import as_request, execute
from components.types import Artifact


def save(path: Path, change: Callable[[Any], None] = lambda tokenizer: None) -> Path:
    """A model directory without weights, its tokenizer changed."""
    tokenizer = _tokenizer(0)
    change(tokenizer)
    tokenizer.save_pretrained(path)
    LlamaConfig(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id).save_pretrained(path)
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


@pytest.mark.parametrize(("change", "says"), [(other_template, "template"), (other_eos, "eos"), (other_vocabulary, "vocabulary")])
@pytest.mark.parametrize("name", ["reference", "initial", "previous", "groups", "teacher"])
def test_what_differs_from_the_policy_is_refused(change: Callable[[Any], None], says: str, name: str, tmp_path: Path) -> None:
    mine, theirs = save(tmp_path / "mine"), save(tmp_path / "theirs", change)
    inputs = {"policy": weights(mine), name: groups(theirs) if name == "groups" else weights(theirs)}
    options = {"prepare": [{"name": "scoring.logprobs", "model": name}]}
    with pytest.raises(ContractError, match=f"select: the tokens of '{name}' .*theirs.* and of 'policy' .*{says}: expected .*, got "):
        agree("select", inputs, options)


def test_matching_inputs_and_models_that_render_text_themselves_pass(tmp_path: Path) -> None:
    mine, same, theirs = save(tmp_path / "mine"), save(tmp_path / "same"), save(tmp_path / "theirs", other_vocabulary)
    inputs = {"policy": weights(mine), "reference": weights(same, **record(same, None)), "groups": groups(mine), "judge": weights(theirs),
              "base": weights(theirs), "teacher": weights(theirs), "data": Artifact("data", tmp_path, "data")}
    assert agree("select", inputs, {"prepare": [{"name": "scoring.logprobs", "model": "reference"}]}) == contract_of(mine)
    assert agree("fetch_data", {}, {}) is None


def test_what_is_noted_is_believed_without_reading_the_model(tmp_path: Path) -> None:
    mine, theirs = save(tmp_path / "mine"), save(tmp_path / "theirs", other_eos)
    noted = {"policy": weights(tmp_path / "gone", **record(mine, None)), "initial": weights(tmp_path / "gone", **record(theirs, None))}
    with pytest.raises(ContractError, match="'initial'"):
        agree("annotate", noted, {})


def test_a_product_that_is_no_chat_model_has_no_contract(tmp_path: Path) -> None:
    agreed = contract_of(save(tmp_path / "mine"))
    encoder = save(tmp_path / "encoder", lambda tokenizer: setattr(tokenizer, "chat_template", None))
    assert record(encoder, agreed) == {}
    assert record(tmp_path, agreed) == {"contract": dataclasses.asdict(agreed)}
    assert record(tmp_path, None) == {}


def test_a_stage_is_refused_before_it_reads_anything(tmp_path: Path) -> None:
    inputs = {"policy": weights(save(tmp_path / "mine")), "groups": groups(save(tmp_path / "theirs", other_template))}
    with pytest.raises(ContractError, match="optimise: the tokens of 'groups'"):
        execute(as_request("optimise", {}, inputs, tmp_path / "work"))


@pytest.mark.parametrize(("change", "message"), [
    (lambda tokenizer: setattr(tokenizer, "chat_template", None), "chat template"),
    (lambda tokenizer: setattr(tokenizer, "pad_token", tokenizer.eos_token), "pad token .* must exist and differ from eos"),
    (lambda tokenizer: setattr(tokenizer, "eos_token", None), "no eos_token"),
])
def test_a_tokenizer_that_cannot_be_trained_with(change: Callable[[Any], None], message: str) -> None:
    tokenizer = _tokenizer(0)
    config = SimpleNamespace(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    assert contract(tokenizer, config).eos == (tokenizer.eos_token_id,)
    with pytest.raises(ContractError, match="they are not a pair"):
        contract(tokenizer, SimpleNamespace(vocab_size=100, eos_token_id=tokenizer.eos_token_id))
    change(tokenizer)
    with pytest.raises(ContractError, match=message):
        contract(tokenizer, config)
