"""Checks after training: the saved directory equals the trained model, inference engine and learner agree,
answers end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from ratchet.components.errors import ContractError
from ratchet.components.inference.agreement import as_groups, gap, require_agreement
from ratchet.components.inference.arrays import probe_arrays, verify_arrays
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.images import load_image_processor, opened, takes_images
from ratchet.components.models.load import hidden_size, load_tokenizer, trusted
from ratchet.components.models.products import product_precision
from ratchet.components.models.reward import FILE as REWARD_HEAD
from ratchet.components.models.reward import is_token_classifier, load_reward_head
from ratchet.components.recipes.families import family_of
from ratchet.components.text.images import images_of
from ratchet.components.training import ranks
from ratchet.components.training.packing import pack
from ratchet.components.types import Group, Request

if TYPE_CHECKING:
    from torch import Tensor

RELOAD_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Tolerance of log-probs and scores by the learner's precision; saved weights are float32. Rounding alone
reached 1.5e-4 at a token of log-prob -15 (of SmolLM2; half of it is transformers' own against float64).
"""
MIN_TOKENS = 96
SPARE = 8
"""Padding added even to the longest text, if the context length allows."""
LOCAL = {"local_files_only": True, "use_safetensors": True}


def weights_precision(profile: Mapping[str, Any]) -> str:
    """Precision of a learner's weights: with `learner: torch` float32, also in mixed precision."""
    return "float32" if profile["learner"] == "torch" else str(profile["precision"])


@product_precision("float32")
def verify_saved(
    path: Path,
    learner: Any,
    groups: Sequence[Group],
    *,
    kind: str,
    tokens: int,
    precision: str = "float32",
    inspect: Callable[[Any], None] | None = None,
) -> float:
    """Largest difference between the learner and the saved directory as loaded by transformers: log-probs of
    masked-in tokens for a policy, scores for a reward model. `ContractError` above the tolerance of
    `precision`, that of the weights; products are in float32.

    `inspect` is called with the loaded model (a `SavedReward`) on rank 0.
    """
    import torch

    if family_of(path):
        return verify_arrays(path, learner, groups, tokens=tokens, tolerance=RELOAD_TOLERANCE["float32"])
    what = "scores" if kind == "reward" else "logprobs"
    theirs = None if not ranks.first() else SavedReward(path) if kind == "reward" else _saved_logprobs(path)
    worst = 0.0
    with torch.no_grad():
        for batch in pack(groups, unit="group", tokens=tokens):
            ours = getattr(learner(batch, frozenset({what})), what)
            if theirs is None:
                continue  # every rank computes, rank 0 compares
            for row, ids in enumerate(batch.inputs["tokens"]):
                mask = batch.mask[row, : len(ids)]
                mine = ours[row] if kind == "reward" else ours[row, : len(ids)][mask]
                seen = pixels(path, batch.inputs["images"][row]) if "images" in batch.inputs else {}
                off = (theirs(ids, mask, seen) - mine).abs().nan_to_num(nan=math.inf)
                worst = max(worst, float(off.max()))
    worst = ranks.once(lambda: worst)
    if not worst <= RELOAD_TOLERANCE[precision]:
        raise ContractError(
            f"{path}: the saved model differs from the trained one by {worst:.2g} in {what} "
            f"(at most {RELOAD_TOLERANCE[precision]} expected); the output is not published"
        )
    if inspect is not None and theirs is not None:
        inspect(theirs)
    return worst


def pixels(path: Path, images: Sequence[str]) -> dict[str, Tensor]:
    """What the image processor of a model directory makes of data URLs, as transformers' models take it."""
    if not images:
        return {}
    return dict(load_image_processor(path)(images=[opened(url) for url in images], return_tensors="pt"))


def _saved_logprobs(path: Path) -> Callable[[Tensor, Tensor, Mapping[str, Tensor]], Tensor]:
    """(tokens (T,), mask (T,), images by `pixels`) -> log-probs of the masked-in tokens, by transformers
    alone.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    auto = AutoModelForImageTextToText if takes_images(path) else AutoModelForCausalLM
    saved = auto.from_pretrained(path, trust_remote_code=trusted(path), **LOCAL).float().eval()

    def logprobs(ids: Tensor, mask: Tensor, images: Mapping[str, Tensor]) -> Tensor:
        table = saved(input_ids=ids[None], **images).logits[0, :-1].log_softmax(-1)
        return table.gather(-1, ids[1:, None])[:, 0][mask[1:]]

    return logprobs


@final
class SavedReward:
    """A saved reward model as transformers loads it; our own head is added only if transformers has no class
    for the model.
    """

    def __init__(self, path: Path) -> None:
        from transformers import (
            AutoModel,
            AutoModelForSequenceClassification,
            AutoModelForTokenClassification,
        )

        self.path, self.by_token = path, is_token_classifier(path)
        self.whole = self.by_token or not (path / REWARD_HEAD).is_file()
        auto = (
            AutoModelForTokenClassification
            if self.by_token
            else AutoModelForSequenceClassification
            if self.whole
            else AutoModel
        )
        self.model = auto.from_pretrained(path, trust_remote_code=trusted(path), **LOCAL).float().eval()
        self.head = None if self.whole else load_reward_head(path, hidden_size(self.model))

    def __call__(self, ids: Tensor, mask: Tensor, images: Mapping[str, Tensor] | None = None) -> Tensor:
        """Score () of tokens (T,) with loss mask (T,), and images by `pixels`."""
        return self.scores({"input_ids": ids[None], **(images or {})}, mask[None])[0]

    def scores(self, inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Scores (B,) of tokenizer outputs with loss mask (B, T)."""
        import torch

        out = self.model(**inputs)
        if self.whole and not self.by_token:
            return out.logits[:, 0]
        means = torch.stack(
            [
                row[mask].mean(0)
                for row, mask in zip(out.logits if self.whole else out.last_hidden_state, mask, strict=True)
            ]
        )
        return (self.head(means) if self.head else means)[:, 0]

    def padding(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Largest change of the scores when texts are batched with padding on the left and on the right, for
        `certify`. Empty for a model that transformers alone cannot score.
        """
        import torch

        if not self.whole:
            return {}
        tokenizer, config = load_tokenizer(self.path), self.model.config.get_text_config()
        rows = [
            (torch.as_tensor(t.inputs["tokens"]), torch.as_tensor(t.mask))
            for group in groups
            for t in group.trajectories
        ]
        longest = max(len(ids) for ids, _ in rows)
        width = max(
            longest, min(longest + SPARE, getattr(config, "max_position_embeddings", None) or longest + SPARE)
        )
        found: dict[str, float] = {}
        with torch.no_grad():
            alone = torch.stack([self(*row) for row in rows])
            for side in ("left", "right"):
                inputs = tokenizer.pad(
                    {"input_ids": [ids.tolist() for ids, _ in rows]},
                    padding="max_length",
                    max_length=width,
                    padding_side=side,
                    return_attention_mask=True,
                    return_tensors="pt",
                )
                text = inputs["attention_mask"].bool()
                mask = torch.zeros_like(text).masked_scatter(text, torch.cat([mask for _, mask in rows]))
                found[side] = float((self.scores(inputs, mask) - alone).abs().max())
        return {"padding_side": tokenizer.padding_side, "padding_difference": found}


@product_precision("float32")
def probe(
    path: Path,
    learner: Any,
    groups: Sequence[Group],
    profile: Mapping[str, Any],
    *,
    seed: int,
    min_ended: float,
) -> dict[str, float]:
    """Sample a few answers with the saved weights and check the share that ends and the log-prob agreement
    with the learner.

    Always uses the torch engine, since a training stage has no memory for another; vLLM is checked where it
    samples (`components/inference/choose.py`). Answers may be as long as those of `groups`, at least 96
    tokens.
    """
    if family_of(path):
        return {"ended": 1.0, "sampler_difference": agree(learner, probe_arrays(path, groups, seed), profile)}
    prompts = [next(i for i, chosen in enumerate(g.trajectories[0].mask) if chosen) for g in groups]
    longest = max(MIN_TOKENS, *(sum(t.mask) for g in groups for t in g.trajectories))
    requests = [
        Request(
            list(g.trajectories[0].inputs["tokens"][:start]),
            max_tokens=longest,
            seed=seed + i,
            images=images_of(g.prompt),
        )
        for i, (g, start) in enumerate(zip(groups, prompts, strict=True))
    ]
    answers = ranks.once(
        lambda: TorchEngine(path, rows=len(groups), threads=profile["threads"]).generate(requests)
    )
    found = {
        "ended": sum(a[0].stop != "length" for a in answers) / len(answers),
        "sampler_difference": agree(
            learner,
            as_groups(requests, answers),
            {**profile, "engine": "torch", "precision": weights_precision(profile)},
        ),
    }
    require_ended(found["ended"], len(answers), min_ended)
    return found


def agree(learner: Any, groups: Sequence[Group], profile: Mapping[str, Any]) -> float:
    """Largest log-prob difference (nats) between sampler and learner on sampled answers; `ContractError`
    above the bound.
    """
    import torch

    from ratchet.components.inference.torch import score_in_batches

    wanted = frozenset({"logprobs"})
    with torch.no_grad():
        scored = score_in_batches(
            groups,
            lambda batch: learner(batch, wanted).by_name,
            outputs=wanted,
            tokens=profile["tokens_per_microbatch"],
        )
    return require_agreement(ranks.once(lambda: gap(groups, scored)), profile)


def require_ended(ended: float, answers: int, min_ended: float) -> None:
    """`ContractError` if the share of answers that end with an end-of-turn token is below `fit.min_ended`."""
    if ended < min_ended:
        raise ContractError(
            f"{ended:.0%} of {answers} answers ended with the end-of-turn token (`fit.min_ended` expects "
            f"at least {min_ended:.0%}); "
            "check the number of steps (`fit.epochs`), the chat template, the EOS id, the learning rate and "
            "the maximum answer length (max_tokens)"
        )
