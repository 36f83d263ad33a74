"""Verification of model types: packed forward pass and decoding against transformers' own forward pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ratchet.components.errors import SourceError
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.forward import model_outputs
from ratchet.components.models.load import load_from, load_tokenizer, trusted
from ratchet.components.training.packing import pack
from ratchet.components.types import Group, Prompt, Request, Sample, Trajectory

if TYPE_CHECKING:
    from ratchet.components.text.tokenizer import Tokenizer

TESTED = frozenset(
    [
        "arcee",
        "bitnet",
        "cohere",
        "cohere2",
        "ernie4_5",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "granite",
        "granitemoe",
        "helium",
        "hunyuan_v1_dense",
        "llama",
        "mistral",
        "mixtral",
        "nanochat",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "opt",
        "phi",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "starcoder2",
        "vaultgemma",
    ]
)
"""`model_type`s whose log-probs, gradients and decoding the tests compare with transformers'."""
DECODERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForSequenceClassification")
SHORT = {"sliding_window": 12, "attention_chunk_size": 12}
"""Configuration of the verification: windows shorter than its rows."""
TOLERANCE = 1e-3  # nats; float32 sums in another order differ by about 1e-6


def require_verified(path: Path) -> bool:
    """Verify a policy or reward model whose model type is not `TESTED`, on a few tokens. `SourceError` if its
    log-probs differ from transformers', which is so for layers that carry a state from token to token (Mamba,
    Qwen3-Next). A sentence encoder is not verified. Returns whether the model was run.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trusted(path))
    kinds = config.architectures or []
    encoder = bool(kinds) and not any(kind.endswith(DECODERS) for kind in kinds)
    text = config.get_text_config()  # that of the language model, for one that also sees
    if encoder or (text.model_type in TESTED and not getattr(config, "auto_map", None)):
        return False
    generates = not any("Classification" in kind for kind in kinds)
    for name, value in SHORT.items():
        if getattr(text, name, None):
            setattr(text, name, value)
    try:
        model: Any = load_from(AutoModelForCausalLM, path, "ratchet", torch.float32, config=config)
        difference = logprob_difference(model, load_tokenizer(path) if generates else None)
    except SourceError:
        raise
    except Exception as error:  # other code than the tests have seen: any exception may be raised
        raise SourceError(
            f"{path}: models of type {config.model_type!r} cannot be run ({type(error).__name__}: {error}); "
            f"use one of the types {', '.join(sorted(TESTED))}"
        ) from error
    if not difference <= TOLERANCE:
        raise SourceError(
            f"{path}: models of type {config.model_type!r} are not supported: packed into one row, their "
            f"log-probs differ from transformers' by {difference:.2g} nats (expected {TOLERANCE:g} or less), "
            "as of layers whose state passes from token to token, or of attention that is not transformers'; "
            f"use one of the types {', '.join(sorted(TESTED))}"
        )
    return True


def logprob_difference(model: Any, tokenizer: Tokenizer | None) -> float:
    """Largest difference in nats between log-probs of sampled answers by transformers' own forward pass of a
    causal language model, and by the packed forward pass or decoding (without a tokenizer not decoding).
    Prompts share a prefix, and answers a prompt. The model's attention implementation is changed to
    transformers'.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    drawn = torch.randint(vocabulary, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    prompts = [drawn[:20], drawn[:17] + drawn[20:25], drawn[25:33]]
    samples = [[Sample(tuple(drawn[34 + 8 * i : 42 + 8 * i]), (), "length") for i in range(2)]] * 3
    if tokenizer is not None:
        learner = SimpleNamespace(kind="policy", merged=lambda: model, tokenizer=tokenizer)
        samples = TorchEngine.following(learner, rows=5).generate(
            [Request(tuple(prompt), seed=n, count=2, max_tokens=8) for n, prompt in enumerate(prompts)]
        )
    groups = list[Group]()
    for prompt, answers in zip(prompts, samples, strict=True):
        rows = [[*prompt, *answer.tokens] for answer in answers]
        masks = [[False] * len(prompt) + [True] * len(answer.tokens) for answer in answers]
        paths = [Trajectory((), {"tokens": r}, m) for r, m in zip(rows, masks, strict=True)]
        groups.append(Group(Prompt(str(len(groups)), ()), tuple(paths)))
    decoded = [torch.tensor(answer.logprobs) for answers in samples for answer in answers]
    batch = pack(groups, unit="row", tokens=10_000)[0]
    with torch.no_grad():
        ours = model_outputs(model, "policy", batch, frozenset({"logprobs"})).logprobs
        theirs = own_logprobs(model, batch.inputs["tokens"])
    worst = 0.0
    for b, logprobs in enumerate(theirs):
        answer = batch.mask[b, : len(logprobs)]
        packed = ours[b, : len(logprobs)][answer]
        for found in (packed, decoded[b] if len(decoded[b]) else packed):
            worst = max(worst, float((found.double() - logprobs[answer].double()).abs().max()))
    return worst


def own_logprobs(model: Any, rows: Any) -> list[Tensor]:
    """Log-probs (T,) of each row's tokens by transformers' own forward pass, one row at a time; the first
    token has 0. The attention implementation becomes "eager".
    """
    plain: nn.Module = model
    model.set_attn_implementation("eager")
    found = []
    for row in rows:
        given = row[None].to(next(model.parameters()).device)
        logits = plain(input_ids=given, use_cache=False).logits[0, :-1].float().log_softmax(-1).to(row.device)
        chosen = logits.gather(-1, row[1:, None])[:, 0]
        found.append(torch.cat([chosen.new_zeros(1), chosen]))
    return found
