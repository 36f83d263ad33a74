"""A mixture of several models as one engine: log p is proportional to a weighted sum of their log-probs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from ratchet.components.errors import ContractError
from ratchet.components.inference.decoding import Decoding, check_requests
from ratchet.components.inference.torch import TorchEngine, score_in_batches
from ratchet.components.models.attention import PackedPlan
from ratchet.components.models.images import image_rows
from ratchet.components.models.layers import hidden_states, language_model, output_layer
from ratchet.components.models.products import product
from ratchet.components.text.codec import Codec
from ratchet.components.types import Batch, Group, Request, Sample

STATES = 256
"""Positions scored at once: their log-probs over the whole vocabulary are in memory for every model."""


@final
class MixedEngine(Codec):
    """Generates and scores with p(token) proportional to the product of p_m(token)^w_m over torch engines m,
    all conditioned on the same tokens: (1 - beta, beta) is the geometric mixture of arXiv 2312.00886,
    (1, a, -a) emulated fine-tuning (arXiv 2310.12962) and proxy tuning (arXiv 2401.08565). Output layers are
    float32.

    `weights`: w by model name; a model of weight 0 is left out. `nucleus`: a model's name and a share; only
    the smallest set of its likeliest tokens with that share can be sampled. Log-probs are the mixture's, at
    temperature 1. `ContractError` for models without a common tokenizer and chat template, or that do not
    generate with torch.
    """

    def __init__(
        self,
        engines: Mapping[str, Any],
        weights: Mapping[str, float],
        *,
        nucleus: tuple[str, float] | None = None,
    ) -> None:
        self.factors = {name: float(w) for name, w in weights.items() if w}
        if not self.factors:
            raise ContractError("a mixture needs a model with a weight other than 0")
        self.nucleus = nucleus if nucleus and nucleus[1] < 1 else None
        names = [*self.factors, *([self.nucleus[0]] if self.nucleus else [])]
        every = {name: engines[name] for name in dict.fromkeys(names)}
        # A mixture needs its models in one process: of a sharded engine, the one in this process.
        self.engines: dict[str, TorchEngine] = {name: getattr(e, "local", e) for name, e in every.items()}
        for name, engine in self.engines.items():
            if not isinstance(engine, TorchEngine) or engine.kind == "reward":
                raise ContractError(
                    f"the mixture needs the distribution of {name!r} over all tokens, which "
                    f"{type(engine).__name__} does not give; use language models with `engine: torch` in the "
                    "profile"
                )
        first, *others = self.engines.values()
        for name, other in zip(list(self.engines)[1:], others, strict=True):
            same = (first.contract.eos, first.contract.template, first.contract.vocabulary)
            if (other.contract.eos, other.contract.template, other.contract.vocabulary) != same:
                raise ContractError(
                    f"the models of a mixture must share tokenizer, chat template and end-of-turn tokens; "
                    f"{name!r} differs from {next(iter(self.engines))!r}"
                )
        self.tokenizer, self.contract, self.rows = first.tokenizer, first.contract, first.rows
        parts = [f"{name}:{e.weights}:{self.factors.get(name, 0)}" for name, e in self.engines.items()]
        self.weights = hashlib.sha256(f"{parts} {self.nucleus}".encode()).hexdigest()

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """`count` samples per request, in order. Random numbers are those of a single engine."""
        check_requests(requests)
        if not requests:
            return []
        models = [engine.model for engine in self.engines.values()]
        return Decoding(
            models,
            requests,
            rows=self.rows,
            eos=self.contract.eos,
            decode=self.decode,
            combine=None if self._single else self._mix,
        ).run()

    @torch.inference_mode()
    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """Per group `logprobs` and `entropy` of the mixture, as lists (T), 0 where the loss mask is False. A
        token outside the nucleus has the log-prob -inf.
        """
        if outputs - {"logprobs", "entropy"}:
            raise ContractError(
                "a mixture gives logprobs and entropy, not "
                f"{', '.join(sorted(outputs - {'logprobs', 'entropy'}))}"
            )
        groups = [self.encode(group) for group in groups]
        return score_in_batches(groups, self._score, outputs=outputs)

    def _score(self, batch: Batch) -> dict[str, Tensor]:
        rows = list(batch.inputs["tokens"])
        states = []
        for engine in self.engines.values():
            language = language_model(engine.model)
            images = image_rows(language, rows, batch.inputs.get("images", ()))
            plan = PackedPlan(images.rows if images else rows)
            embeddings = images.embed(plan.tokens) if images else None
            hidden = hidden_states(language, plan.tokens, plan.positions, plan, embeddings=embeddings)
            before = [
                index[batch.mask[b, : len(index)].nonzero()[:, 0] - 1] for b, index in enumerate(plan.index)
            ]
            states.append((output_layer(language), hidden[torch.cat(before).to(hidden.device)]))
        targets = torch.cat([tokens[batch.mask[b, : len(tokens)]] for b, tokens in enumerate(rows)])
        logprobs, entropy = [], []
        for at in range(0, len(targets), STATES):
            logits = [
                head.logits(product(head.weight, part[at : at + STATES].float())) for head, part in states
            ]
            mixed = (logits[0] if self._single else self._mix(logits)).log_softmax(0)
            logprobs.append(mixed.gather(0, targets[at : at + STATES].to(mixed.device)[None])[0])
            entropy.append(-(mixed.exp() * mixed.clamp(min=-1e30)).sum(0))
        spread = torch.zeros(batch.mask.shape)
        return {
            name: spread.masked_scatter(batch.mask, torch.cat(parts).cpu() if parts else spread[:0, 0])
            for name, parts in (("logprobs", logprobs), ("entropy", entropy))
        }

    @property
    def _single(self) -> bool:
        return self.nucleus is None and list(self.factors.values()) == [1.0]

    def _mix(self, logits: list[Tensor]) -> Tensor:
        """Logits (V, R) of the mixture. Some models pad the vocabulary: only common tokens count."""
        size = min(len(one) for one in logits)
        by_name = {name: one[:size].log_softmax(0) for name, one in zip(self.engines, logits, strict=True)}
        parts = [by_name[name] * weight for name, weight in self.factors.items()]
        mixed = torch.stack(parts).sum(0)
        if self.nucleus is None:
            return mixed
        name, share = self.nucleus
        ranked, where = by_name[name].exp().sort(0, descending=True)
        kept = ranked.cumsum(0) - ranked < share
        return mixed.masked_fill(~torch.zeros_like(kept).scatter_(0, where, kept), -torch.inf)
