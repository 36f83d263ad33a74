"""Checks after every change of weights: the saved directory is the trained model, the sampler agrees with the learner."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components import ranks
from components.engines.agreement import as_groups, gap, require_agreement
from components.engines.torch import TorchEngine
from components.errors import ContractError
from components.models.load import trusted
from components.models.reward import FILE as REWARD_HEAD
from components.models.reward import is_token_classifier, load_reward_head
from components.packing import pack
from components.types import Group, Request

if TYPE_CHECKING:
    from torch import Tensor

RELOAD_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.25}
"""Of a log-prob or score, by the learner's precision: what is saved is in float32."""
MIN_TOKENS = 96
OURS = {"local_files_only": True, "use_safetensors": True}


def verify_saved(path: Path, learner: Any, groups: Sequence[Group], *, kind: str, tokens: int, precision: str = "float32") -> float:
    """Largest difference between the learner and the saved directory as transformers itself loads it.

    Log-probs of chosen steps for a policy, scores for a reward model. Over 1e-4 (of a learner in float32) is a `ContractError`.
    """
    import torch

    ask = "scores" if kind == "reward" else "logprobs"
    theirs = None if not ranks.first() else _saved_scores(path) if kind == "reward" else _saved_logprobs(path)
    worst = 0.0
    with torch.no_grad():
        for batch in pack(groups, unit="group", tokens=tokens):
            ours = getattr(learner(batch, frozenset({ask})), ask)
            if theirs is None:
                continue  # every rank computes, the first compares
            for row, ids in enumerate(batch.inputs["tokens"]):
                mask = batch.mask[row, : len(ids)]
                mine = ours[row] if kind == "reward" else ours[row, : len(ids)][mask]
                worst = max(worst, float((theirs(ids, mask) - mine).abs().nan_to_num(nan=math.inf).max()))
    worst = ranks.once(lambda: worst)
    if not worst <= RELOAD_TOLERANCE[precision]:
        raise ContractError(f"{path}: the saved model differs from the trained one by {worst:.2g} in {ask} "
                            f"(at most {RELOAD_TOLERANCE[precision]} expected); it is not published")
    return worst


def _saved_logprobs(path: Path) -> Callable[[Tensor, Tensor], Tensor]:
    """(tokens (T,), mask (T,)) -> log-probs of the chosen tokens, by transformers alone."""
    from transformers import AutoModelForCausalLM

    saved = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=trusted(path), **OURS).float().eval()

    def logprobs(ids: Tensor, mask: Tensor) -> Tensor:
        table = saved(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        return table.gather(-1, ids[1:, None])[:, 0][mask[1:]]

    return logprobs


def _saved_scores(path: Path) -> Callable[[Tensor, Tensor], Tensor]:
    """(tokens (T,), mask (T,)) -> the score by transformers alone; only the head is ours where it has no class for the whole."""
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification

    if is_token_classifier(path):
        tagger = AutoModelForTokenClassification.from_pretrained(path, trust_remote_code=trusted(path), **OURS).float().eval()
        return lambda ids, mask: tagger(input_ids=ids[None]).logits[0][mask].mean()
    if not (path / REWARD_HEAD).is_file():
        classifier = AutoModelForSequenceClassification.from_pretrained(path, trust_remote_code=trusted(path), **OURS).float().eval()
        return lambda ids, mask: classifier(input_ids=ids[None]).logits[0, 0]
    backbone = AutoModel.from_pretrained(path, trust_remote_code=trusted(path), **OURS).float().eval()
    head = load_reward_head(path, backbone.config.hidden_size)
    return lambda ids, mask: head(backbone(input_ids=ids[None]).last_hidden_state[0][mask].mean(0))[0]


def probe(path: Path, learner: Any, groups: Sequence[Group], profile: Mapping[str, Any], *, seed: int, min_ended: float) -> dict[str, float]:
    """Answers to a few prompts with the saved weights: do they end, and do sampler and learner agree on their log-probs?

    Sampled by the torch engine whatever the profile's is, for a stage that learns has no room for another beside it; an engine of
    vLLM is compared where it samples (`components/engines/choose.py`). Answers may be as long as those of `groups`, 96 tokens at least.
    """
    prompts = [next(i for i, chosen in enumerate(g.trajectories[0].mask) if chosen) for g in groups]
    longest = max(MIN_TOKENS, *(sum(t.mask) for g in groups for t in g.trajectories))
    requests = [Request(list(g.trajectories[0].inputs["tokens"][:start]), max_tokens=longest, seed=seed + i)
                for i, (g, start) in enumerate(zip(groups, prompts, strict=True))]
    answers = ranks.once(lambda: TorchEngine(path, rows=len(groups), threads=profile["threads"]).generate(requests))
    found = {"ended": sum(a[0].stop != "length" for a in answers) / len(answers),
             "sampler_difference": agree(learner, as_groups(requests, answers), {**profile, "engine": "torch"})}
    require_ended(found["ended"], len(answers), min_ended)
    return found


def agree(learner: Any, groups: Sequence[Group], profile: Mapping[str, Any]) -> float:
    """The largest difference between the log-probs that sampled answers carry and the learner's own, nats; `ContractError` over the bound."""
    import torch

    scored: list[dict[str, list[list[float]]]] = [{"logprobs": []} for _ in groups]
    with torch.no_grad():
        for batch in pack(groups, unit="row", tokens=profile["tokens_per_batch"]):
            ours = learner(batch, frozenset({"logprobs"})).logprobs
            for row, group in enumerate(batch.group.tolist()):
                scored[group]["logprobs"].append(ours[row, : len(batch.inputs["tokens"][row])].tolist())
    return require_agreement(ranks.once(lambda: gap(groups, scored)), profile)


def require_ended(ended: float, answers: int, min_ended: float) -> None:
    """`ContractError` when a smaller share of the answers than `fit.min_ended` came to an end of their own."""
    if ended < min_ended:
        raise ContractError(f"{ended:.0%} of {answers} answers ended by themselves (at least {min_ended:.0%} expected by `fit.min_ended`): "
                            "the policy no longer emits its end-of-turn token; look at the chat template, the EOS id, the learning rate and "
                            "the rollout's max_tokens")
