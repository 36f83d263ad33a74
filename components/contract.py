"""The contract of a model: what its tokens mean. Checked before every stage, recorded with everything a stage makes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import ContractError, RatchetError
from components.types import Artifact

MEET = ("policy", "reference", "initial", "previous")
"""Inputs of a stage that sample tokens or read those another sampled."""


@dataclass(frozen=True)
class Contract:
    """What two models must share before one reads the other's tokens. `template` and `vocabulary` (token -> id) are digests.

    Padding is not in it, for rows are packed, nor is the size of the embedding, which some pad to a round number.
    """

    eos: tuple[int, ...]
    template: str
    vocabulary: str

    def check(self, other: Contract, where: str) -> None:
        """Raises `ContractError` naming everything in which `other` is not as this one."""
        differences = [f"{field.name}: expected {getattr(self, field.name)!r}, got {getattr(other, field.name)!r}"
                       for field in dataclasses.fields(self) if getattr(self, field.name) != getattr(other, field.name)]
        if differences:
            raise ContractError(f"{where} do not mean the same ({'; '.join(differences)}). Use models with one tokenizer, chat template "
                                "and end of turn, and sample again what another model sampled")


def contract(tokenizer: Any, config: Any) -> Contract:
    """The contract of a tokenizer and a model config. `ContractError` where it cannot be trained with."""
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    if not tokenizer.chat_template:
        raise ContractError(f"{name}: the tokenizer has no chat template; put a chat_template.jinja beside tokenizer.json")
    if tokenizer.eos_token_id is None:
        raise ContractError(f"{name}: the tokenizer has no eos_token; set it to the token that ends a turn in the template")
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        raise ContractError(f"{name}: pad token ({tokenizer.pad_token!r}) must exist and differ from eos ({tokenizer.eos_token!r}), "
                            "or the end of an answer is masked as padding; set pad_token to an unused special token in "
                            "tokenizer_config.json and pad_token_id in config.json")
    if config.vocab_size < len(tokenizer):
        raise ContractError(f"{name}: the tokenizer has {len(tokenizer)} tokens, the model only {config.vocab_size}; they are not a pair")
    eos = config.eos_token_id if isinstance(config.eos_token_id, (list, tuple)) else [config.eos_token_id]
    if tokenizer.eos_token_id not in eos:
        raise ContractError(f"{name}: eos is {tokenizer.eos_token_id} for the tokenizer and {eos} for the model; make them the same")
    return Contract(tuple(sorted(eos)), _digest(tokenizer.chat_template), _digest(tokenizer.get_vocab()))


def contract_of(path: Path) -> Contract:
    """The contract of a model directory. `SourceError` without a tokenizer, `ContractError` where it cannot be trained with."""
    from transformers import AutoConfig

    from components.models.load import load_tokenizer

    return contract(load_tokenizer(path), AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False))


def agree(stage: str, inputs: Mapping[str, Artifact], options: Mapping[str, Any]) -> Contract | None:
    """The contract of the stage's policy, which every input whose tokens meet the policy's shares: other policies, groups, and
    the models that `scoring` pieces name. None without a policy; `ContractError` names the first input that differs.

    Judges and the base model are not asked: they render text by their own template.
    """
    if "policy" not in inputs:
        return None
    expected = _recorded(inputs["policy"]) or contract_of(inputs["policy"].path)
    annotators = [*options.get("annotate", ()), *options.get("prepare", ())]
    readers = {*MEET, *(spec.get("model") for spec in annotators if spec["name"].startswith("scoring."))}
    for name, artifact in inputs.items():
        got = _recorded(artifact)
        if artifact.kind == "weights":
            got = (got or contract_of(artifact.path)) if name in readers else None
        if got:
            expected.check(got, f"{stage}: the tokens of {name!r} ({artifact.path}) and of 'policy' ({inputs['policy'].path})")
    return expected


def record(product: Path, agreed: Contract | None) -> dict[str, Any]:
    """What a stage notes of its product: the model's own contract when it is one, else what its inputs agreed on."""
    made = agreed
    if (product / "config.json").is_file():
        try:
            made = contract_of(product)
        except RatchetError:  # not a chat model (an encoder, say); a stage that takes it for one will be told why not
            made = None
    return {"contract": dataclasses.asdict(made)} if made else {}


def _recorded(artifact: Artifact) -> Contract | None:
    noted = artifact.meta.get("contract")
    return Contract(tuple(noted["eos"]), noted["template"], noted["vocabulary"]) if noted else None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
