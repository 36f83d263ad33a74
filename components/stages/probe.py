"""Checks after every change of weights: the saved directory is the trained model, the sampler agrees with the learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components import ranks
from components.engines.torch import TorchEngine
from components.errors import ContractError
from components.models.load import trusted
from components.models.reward import FILE as REWARD_HEAD
from components.models.reward import load_reward_head
from components.packing import pack
from components.types import Group, Request, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

RELOAD_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.25}
SAMPLER_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Of a log-prob, by the learner's precision: what is saved and what samples are in float32."""
MIN_ENDED = 0.05
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
                worst = max(worst, float((theirs(ids, mask) - mine).abs().max()))
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
    """(tokens (T,), mask (T,)) -> the score, with the backbone run by transformers alone."""
    from transformers import AutoModel, AutoModelForSequenceClassification

    if not (path / REWARD_HEAD).is_file():
        classifier = AutoModelForSequenceClassification.from_pretrained(path, trust_remote_code=trusted(path), **OURS).float().eval()
        return lambda ids, mask: classifier(input_ids=ids[None]).logits[0, 0]
    backbone = AutoModel.from_pretrained(path, trust_remote_code=trusted(path), **OURS).float().eval()
    head = load_reward_head(path, backbone.config.hidden_size)
    return lambda ids, mask: head(backbone(input_ids=ids[None]).last_hidden_state[0][mask].mean(0))[0]


def probe(path: Path, learner: Any, groups: Sequence[Group], *, seed: int, threads: int | None,
          max_tokens: int = 96, precision: str = "float32") -> dict[str, float]:
    """Sample a few answers with the saved weights: how many end, and do sampler and learner agree on their log-probs?"""
    prompts = []
    for group in groups:
        first = group.trajectories[0]
        start = next(i for i, chosen in enumerate(first.mask) if chosen)
        prompts.append((group, list(first.inputs["tokens"][:start])))
    requests = [Request(tokens, max_tokens=max_tokens, seed=seed + i) for i, (_, tokens) in enumerate(prompts)]
    answers = ranks.once(lambda: TorchEngine(path, rows=len(groups), threads=threads).generate(requests))
    sampled = []
    for (group, tokens), samples in zip(prompts, answers, strict=True):
        ids = [*tokens, *samples[0].tokens]
        mask = [False] * len(tokens) + [True] * len(samples[0].tokens)
        sampled.append(Group(group.prompt, (Trajectory(group.trajectories[0].messages[-1:], {"tokens": ids}, mask,
                                                       [0.0] * len(tokens) + list(samples[0].logprobs)),)))
    import torch

    worst = 0.0
    with torch.no_grad():
        for group in sampled:
            batch = pack([group], unit="row", tokens=1 << 20)[0]
            ours = learner(batch, frozenset({"logprobs"})).logprobs[0]
            theirs = torch.tensor(group.trajectories[0].logprobs)
            worst = max(worst, float(((ours[: len(theirs)] - theirs) * batch.mask[0, : len(theirs)]).abs().max()))
    ended = sum(s[0].stop == "end" for s in answers) / len(answers)
    if worst > SAMPLER_TOLERANCE[precision]:
        raise ContractError(f"sampler and learner disagree by {worst:.2g} in log-prob on the same weights "
                            f"(at most {SAMPLER_TOLERANCE[precision]}); training on these samples would be off-policy")
    if ended < MIN_ENDED:
        raise ContractError(f"none of {len(answers)} probe answers ended within {max_tokens} tokens: the policy no longer "
                            "emits its end-of-turn token; look at the chat template, the EOS id and the learning rate")
    return {"ended": ended, "sampler_difference": worst}
