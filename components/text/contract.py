"""Token contract of a model: vocabulary, chat template, end-of-turn tokens, precision. Checked before every
stage, recorded with its output.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import ContractError, RatchetError, SourceError
from ratchet.components.recipes.families import family_of
from ratchet.components.types import Artifact

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ratchet.components.text.tokenizer import Tokenizer

MEET = ("policy", "reference", "initial", "previous")
"""Stage inputs that generate tokens or score tokens of another model."""
STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Trainable precisions, by their names in safetensors. Other types are buffers or quantised weights."""


@dataclass(frozen=True)
class Contract:
    """What two models must share for one to score the other's tokens. `template` and `vocabulary` (token ->
    id) are digests.

    `dtype` is the precision of the stored weights; computation is in float32. A policy may be more precise
    than the models it is compared with (trained in float32 from a bfloat16 model), but not less: rounded
    weights would change its KL to them. Not included: padding, since rows are packed without it, and the
    embedding size, which some models pad.
    """

    eos: tuple[int, ...]
    template: str
    vocabulary: str
    dtype: str

    def check(self, other: Contract, where: str) -> None:
        """`ContractError` listing every field in which `other` differs."""
        differences = [
            f"{name}: expected {mine!r}, got {theirs!r}"
            for name, mine, theirs in (
                (field.name, getattr(self, field.name), getattr(other, field.name))
                for field in dataclasses.fields(self)
            )
            if not (_holds(mine, theirs) if name == "dtype" else mine == theirs)
        ]
        if differences:
            raise ContractError(
                f"{where} do not agree ({'; '.join(differences)}). Use models with one tokenizer, chat "
                "template, "
                "end-of-turn token and precision, and resample answers of another model"
            )


def contract(
    tokenizer: Tokenizer, config: PreTrainedConfig, dtype: str = "float32", *, generates: bool = True
) -> Contract:
    """The contract of a tokenizer and model config with weights of precision `dtype`. `ContractError` if the
    model cannot be trained; with `generates=False` (a reward model), if it cannot score, where padding and
    end of turn do not matter.
    """
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    if not tokenizer.chat_template:
        raise ContractError(
            f"{name}: the tokenizer has no chat template; put a chat_template.jinja next to tokenizer.json"
        )
    if generates and tokenizer.eos_token_id is None:
        raise ContractError(
            f"{name}: the tokenizer has no eos_token; set it to the token that ends a turn in the template"
        )
    if generates and (tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id):
        raise ContractError(
            f"{name}: pad token ({tokenizer.pad_token!r}) must exist and differ from eos "
            f"({tokenizer.eos_token!r}), "
            "or end-of-turn tokens are masked as padding; set pad_token to an unused special token in "
            "tokenizer_config.json and pad_token_id in config.json"
        )
    config = config.get_text_config()  # that of the language model, for one that also sees
    if config.vocab_size < len(tokenizer):
        raise ContractError(
            f"{name}: the tokenizer has {len(tokenizer)} tokens but the model's vocab_size is "
            f"{config.vocab_size}; they do not belong together"
        )
    eos = config.eos_token_id if isinstance(config.eos_token_id, (list, tuple)) else [config.eos_token_id]
    if not generates:
        return Contract((), _digest(tokenizer.chat_template), _digest(tokenizer.get_vocab()), dtype)
    if tokenizer.eos_token_id not in eos:
        raise ContractError(
            f"{name}: eos_token_id is {tokenizer.eos_token_id} in the tokenizer and {eos} in config.json; "
            "make them equal"
        )
    claimed = str(getattr(config, "dtype", None) or dtype).removeprefix("torch.")
    if not _holds(claimed, dtype):
        raise ContractError(
            f"{name}: the weights are {dtype} but config.json says {claimed}, so other programs would "
            "load rounded "
            f"weights; set dtype to {dtype!r} in config.json"
        )
    return Contract(
        tuple(sorted(eos)), _digest(tokenizer.chat_template), _digest(tokenizer.get_vocab()), dtype
    )


def contract_of(path: Path) -> Contract:
    """The contract of a model directory; of a family without tokens, the sizes of observations and actions.
    `SourceError` without a tokenizer, `ContractError` if the model
    cannot be trained.
    """
    if family := family_of(path):  # digests of the sizes: an engine scores actions of another model with them
        sizes = {name: value for name, value in family.items() if name in ("observation", "action")}
        return Contract((), _digest(family["name"]), _digest(sizes), "float32")
    from ratchet.components.models.load import load_tokenizer

    return contract(load_tokenizer(path), _config(path), _stored(path))


def context_length(path: Path) -> int | None:
    """Largest number of tokens that the model of a directory reads; None if its config names none."""
    return getattr(_config(path).get_text_config(), "max_position_embeddings", None)


def _config(path: Path) -> PreTrainedConfig:
    from transformers import AutoConfig

    from ratchet.components.models.load import trusted

    return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trusted(path))


def agree(stage: str, inputs: Mapping[str, Artifact], options: Mapping[str, Any]) -> Contract | None:
    """The contract of the stage's policy, checked against every input that shares its tokens: other policies,
    groups, and the models of `scoring` pieces. None without a policy; `ContractError` names the first input
    that differs.

    Reward models and the base model are exempt: they render text with their own template.
    """
    if "policy" not in inputs:
        return None
    expected = _recorded(inputs["policy"])
    if expected is None and stage == "curate":
        from ratchet.components.models.reward import is_reward_model

        if is_reward_model(inputs["policy"].path):  # `ratchet certify`: used only to count tokens
            return None
    expected = expected or contract_of(inputs["policy"].path)
    annotators = [*options.get("annotate", ()), *options.get("prepare", ())]
    readers = {*MEET, *(spec.get("model") for spec in annotators if spec["name"].startswith("scoring."))}
    for name, artifact in inputs.items():
        if stage == "evaluate" and name.startswith("answers_"):  # of any model: read as text
            continue
        got = _recorded(artifact)
        if artifact.kind == "weights":
            got = (got or contract_of(artifact.path)) if name in readers else None
            if got and name not in MEET:  # a model that only scores tokens may have any precision
                got = dataclasses.replace(got, dtype=expected.dtype)
        if got:
            expected.check(got, f"{stage}: {name!r} ({artifact.path}) and 'policy' ({inputs['policy'].path})")
    return expected


def record(product: Path, agreed: Contract | None) -> dict[str, Any]:
    """Contract to record with a stage's output: the model's own if it is one, else the one its inputs agreed
    on.
    """
    made = agreed
    if (product / "config.json").is_file() or family_of(product):
        try:
            made = contract_of(product)
        except RatchetError:  # not a chat model, e.g. an encoder; a stage that needs one raises its own error
            made = None
    return {"contract": dataclasses.asdict(made)} if made else {}


def _recorded(artifact: Artifact) -> Contract | None:
    noted = artifact.meta.get("contract")
    return (
        Contract(tuple(noted["eos"]), noted["template"], noted["vocabulary"], noted["dtype"])
        if noted
        else None
    )


def _stored(path: Path) -> str:
    """Precision of most weights of a directory. A few (e.g. a router's) may be stored in another."""
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
        raise ContractError(
            f"{path}: the weights are {most}; quantised weights cannot be trained, use a version in "
            f"{', '.join(STORED.values())}"
        )
    return STORED[most]


def _holds(one: str, other: str) -> bool:
    """Whether precision `one` represents every number of precision `other`."""
    return one == other or one == "float32"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
