"""The contract of a model: what its tokens mean. Checked before every stage, recorded with everything a stage makes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.components.errors import ContractError, RatchetError, SourceError
from ratchet.components.types import Artifact

MEET = ("policy", "reference", "initial", "previous")
"""Inputs of a stage that sample tokens or read those another sampled."""
STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Precisions that can be trained from, by their names in safetensors; what else a file holds are buffers or quantised weights."""


@dataclass(frozen=True)
class Contract:
    """What two models must share before one reads the other's tokens. `template` and `vocabulary` (token -> id) are digests.

    `dtype` is the precision the weights are stored in; all are computed in float32, whatever it is. A policy may hold more than
    those it meets, as one trained in float32 from a bfloat16 model does. One that holds less has been rounded, and its KL to
    them is not what training made it. Padding is not in it, for rows are packed, nor is the size of the embedding, which some
    pad to a round number.
    """

    eos: tuple[int, ...]
    template: str
    vocabulary: str
    dtype: str

    def check(self, other: Contract, where: str) -> None:
        """Raises `ContractError` naming everything in which `other` is not as this one."""
        differences = [f"{name}: expected {mine!r}, got {theirs!r}" for name, mine, theirs in (
                       (field.name, getattr(self, field.name), getattr(other, field.name)) for field in dataclasses.fields(self))
                       if not (_holds(mine, theirs) if name == "dtype" else mine == theirs)]
        if differences:
            raise ContractError(f"{where} do not agree ({'; '.join(differences)}). Use models with one tokenizer, chat template, "
                                "end of turn and precision, and sample again what another model sampled")


def contract(tokenizer: Any, config: Any, dtype: str = "float32", *, generates: bool = True) -> Contract:
    """The contract of a tokenizer and a model config over weights of a precision. `ContractError` where it cannot be trained with; of
    a reward model (`generates=False`), where it cannot score, for which padding and end of turn do not matter."""
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    if not tokenizer.chat_template:
        raise ContractError(f"{name}: the tokenizer has no chat template; put a chat_template.jinja beside tokenizer.json")
    if generates and tokenizer.eos_token_id is None:
        raise ContractError(f"{name}: the tokenizer has no eos_token; set it to the token that ends a turn in the template")
    if generates and (tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id):
        raise ContractError(f"{name}: pad token ({tokenizer.pad_token!r}) must exist and differ from eos ({tokenizer.eos_token!r}), "
                            "or the end of an answer is masked as padding; set pad_token to an unused special token in "
                            "tokenizer_config.json and pad_token_id in config.json")
    if config.vocab_size < len(tokenizer):
        raise ContractError(f"{name}: the tokenizer has {len(tokenizer)} tokens, the model only {config.vocab_size}; they are not a pair")
    eos = config.eos_token_id if isinstance(config.eos_token_id, (list, tuple)) else [config.eos_token_id]
    if not generates:
        return Contract((), _digest(tokenizer.chat_template), _digest(tokenizer.get_vocab()), dtype)
    if tokenizer.eos_token_id not in eos:
        raise ContractError(f"{name}: eos is {tokenizer.eos_token_id} for the tokenizer and {eos} for the model; make them the same")
    claimed = str(getattr(config, "dtype", None) or dtype).removeprefix("torch.")
    if not _holds(claimed, dtype):
        raise ContractError(f"{name}: the weights are {dtype} and config.json says {claimed}, to which whoever loads the model by its "
                            f"config rounds them; set dtype to {dtype!r} in config.json")
    return Contract(tuple(sorted(eos)), _digest(tokenizer.chat_template), _digest(tokenizer.get_vocab()), dtype)


def contract_of(path: Path) -> Contract:
    """The contract of a model directory. `SourceError` without a tokenizer, `ContractError` where it cannot be trained with."""
    from transformers import AutoConfig

    from ratchet.components.models.load import load_tokenizer, trusted

    tokenizer, config = load_tokenizer(path), AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trusted(path))
    return contract(tokenizer, config, _stored(path))


def agree(stage: str, inputs: Mapping[str, Artifact], options: Mapping[str, Any]) -> Contract | None:
    """The contract of the stage's policy, which every input whose tokens meet the policy's shares: other policies, groups, and
    the models that `scoring` pieces name. None without a policy; `ContractError` names the first input that differs.

    Judges and the base model are not asked: they render text by their own template.
    """
    if "policy" not in inputs:
        return None
    expected = _recorded(inputs["policy"])
    if expected is None and stage == "curate":
        from ratchet.components.models.reward import is_reward_model

        if is_reward_model(inputs["policy"].path):  # `ratchet certify`: its tokenizer counts tokens, and that is all
            return None
    expected = expected or contract_of(inputs["policy"].path)
    annotators = [*options.get("annotate", ()), *options.get("prepare", ())]
    readers = {*MEET, *(spec.get("model") for spec in annotators if spec["name"].startswith("scoring."))}
    for name, artifact in inputs.items():
        got = _recorded(artifact)
        if artifact.kind == "weights":
            got = (got or contract_of(artifact.path)) if name in readers else None
            if got and name not in MEET:  # a teacher or judge of tokens: what it is stored in is its own affair
                got = dataclasses.replace(got, dtype=expected.dtype)
        if got:
            expected.check(got, f"{stage}: {name!r} ({artifact.path}) and 'policy' ({inputs['policy'].path})")
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
    return Contract(tuple(noted["eos"]), noted["template"], noted["vocabulary"], noted["dtype"]) if noted else None


def _stored(path: Path) -> str:
    """The precision of most weights of a directory; a few, such as a router's, may be kept in another."""
    from safetensors import safe_open

    count: Counter[str] = Counter()
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "numpy") as tensors:
            for part in map(tensors.get_slice, tensors.keys()):
                count[part.get_dtype()] += math.prod(part.get_shape())
    if not count:
        raise SourceError(f"{path}: holds no weights (model.safetensors expected; pickles are never read)")
    most = count.most_common(1)[0][0]
    if most not in STORED:
        raise ContractError(f"{path}: the weights are {most}; quantised weights cannot be trained, use the model's {', '.join(STORED.values())} ones")
    return STORED[most]


def _holds(one: str, other: str) -> bool:
    """Whether every number of the other precision is one of this."""
    return one == other or one == "float32"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
