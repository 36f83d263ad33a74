"""Continuous batching: waiting requests, prompt slots, and live rows of the KV cache, for one model or for
several models in lock step.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor

from ratchet.components.errors import ContractError
from ratchet.components.inference.sampling import sample, unrounded
from ratchet.components.models.cached_attention import Cache, DecodePlan, PrefillPlan
from ratchet.components.models.decode_graph import DecodeGraphs, has_fixed_steps
from ratchet.components.models.device import distinct_writes
from ratchet.components.models.images import image_rows
from ratchet.components.models.layers import backbone, hidden_states, language_model, output_layer
from ratchet.components.models.products import mixed_precision, packed, product, rounded_products
from ratchet.components.stages import progress
from ratchet.components.text.chat import ends_with
from ratchet.components.types import Request, Sample

ADMITS = 8
"""On a GPU, prompts wait until one in so many rows is free: one prompt takes as long there as many."""
Combine = Callable[[list[Tensor]], Tensor]
"""Logits (V, R) of every model to the logits (V, R) to sample from."""


def check_requests(requests: Sequence[Request]) -> None:
    """`ContractError` for a request that no engine can answer."""
    for request in requests:
        if not len(request.tokens) or request.max_tokens < 1 or request.count < 1:
            raise ContractError(
                f"a request needs tokens, max_tokens >= 1 and count >= 1; got {len(request.tokens)} "
                f"tokens, max_tokens {request.max_tokens} and count {request.count}"
            )
        if not all(request.stop_strings):
            raise ContractError("a stop string is empty; every answer would end before its first token")


@dataclass
class Row:
    """One answer being generated. `slot`: its prompt's slot in the KV cache."""

    request: int
    number: int
    slot: int
    uniforms: numpy.ndarray
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)


class LanguageModel:
    """A model in one `generate` call: its layers, output head and KV cache. `half`: the output layer rounds
    its operands and the logits to bfloat16.
    """

    def __init__(self, model: Any, requests: Sequence[Request], *, half: bool, slots: int, rows: int) -> None:
        self.language = language_model(model)
        self.prompts = [torch.tensor(list(request.tokens), dtype=torch.long) for request in requests]
        self.images = image_rows(self.language, self.prompts, [request.images for request in requests])
        self.prompts = self.images.rows if self.images else self.prompts
        self.head = output_layer(self.language)
        half = half and self.head.linear and self.head.weight.device.type == "cpu"
        self.half = self.head.weight.bfloat16() if half else None
        prompt, answer = max(map(len, self.prompts)), max(request.max_tokens for request in requests)
        self.cache = Cache(self.language, slots=slots, prompt=prompt, rows=rows, answer=answer)
        width = max(request.count for request in requests)
        fixed = has_fixed_steps(self.language)
        self.graphs = DecodeGraphs(self.language, self.cache, width=width) if fixed else None

    def prefill(self, chosen: Sequence[tuple[int, int]]) -> Tensor:
        """Last hidden states (P, H) of the prompts of requests; `chosen`: (request, slot of the cache)."""
        plan = PrefillPlan([self.prompts[i] for i, _ in chosen], self.cache, [slot for _, slot in chosen])
        embeddings = self.images.embed(plan.tokens) if self.images else None
        hidden = hidden_states(self.language, plan.tokens, plan.positions, plan, embeddings=embeddings)
        return hidden[torch.stack([index[-1] for index in plan.index]).to(hidden.device)]

    def decode(self, tokens: Tensor, positions: Tensor, **where: Any) -> Tensor:
        """Last hidden states (R, H) of every live row."""
        if self.graphs:
            return self.graphs(tokens, positions, **where)
        plan = DecodePlan(self.cache, **where)
        return hidden_states(self.language, tokens, positions, plan)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (V, R) of hidden states (R, H). `weight @ hidden.T` is up to 1.7 times as fast on CPU as the
        transposed product, and in bfloat16 five times as fast again.
        """
        if self.half is not None:
            return self.head.logits(product(self.half, hidden.bfloat16()))
        with rounded_products() if hidden.device.type == "cuda" else contextlib.nullcontext():
            return self.head.logits(product(self.head.weight, hidden.float()))

    def unrounded(self, logprobs: Tensor, logits: Tensor, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Log-probs (R,) of drawn tokens (R,) from the rounded logits (V, R), corrected by the tokens' own
        unrounded logits.
        """
        if self.half is None:
            return logprobs
        exact = (hidden.bfloat16().float() * self.half[tokens].float()).sum(1)
        exact = exact if self.head.bias is None else exact + self.head.bias[tokens]
        return unrounded(logprobs, logits.gather(0, tokens[None])[0], exact)


class Decoding:
    """State of one `generate` call: waiting requests, prompt slots, and live rows 0..n-1 of the KV caches.
    Several models decode the same tokens in lock step; `combine` makes one distribution of theirs.
    """

    def __init__(
        self,
        models: Sequence[Any],
        requests: Sequence[Request],
        *,
        rows: int,
        eos: Sequence[int],
        decode: Callable[[Sequence[int]], str],
        combine: Combine | None = None,
    ) -> None:
        self.requests, self.decode, self.combine = requests, decode, combine
        self.returns_top = any(r.top_logprobs for r in requests)
        self.width = max(r.count for r in requests)
        gpu = any(p.device.type == "cuda" for model in models for p in model.parameters())
        self.admits = ADMITS if gpu else math.inf
        self.capacity = max(rows, self.width)
        slots = min(len(requests), self.capacity, 2 * -(-self.capacity // min(r.count for r in requests)))
        # In mixed precision the logits of plain sampling are rounded to bfloat16, the log-prob of the drawn
        # token is not. Greedy, top-k and top-p decoding would meet ties, and mixtures subtract log-probs.
        plain = all(r.temperature > 0 and not r.top_k and r.top_p >= 1 for r in requests)
        half = plain and mixed_precision() and not (combine or self.returns_top)
        self.models = [
            LanguageModel(
                model,
                requests,
                half=half,
                slots=slots,
                rows=min(self.capacity, sum(r.count for r in requests)),
            )
            for model in models
        ]
        self.free = list(range(slots))[::-1]
        # Prompts that begin alike follow each other, so that what they share is in a slot; answers do not
        # depend on their neighbours.
        self.waiting = deque(sorted(range(len(requests)), key=lambda i: list(requests[i].tokens)))
        self.stops = [{*eos, *r.stop_tokens} for r in requests]
        self.live: list[Row] = []
        self.done: list[list[Sample | None]] = [[None] * r.count for r in requests]

    def run(self) -> list[list[Sample]]:
        """All samples of every request."""
        with contextlib.ExitStack() as stack:
            for model in self.models:
                stack.enter_context(packed(backbone(model.language), self.capacity))
            while self.step():
                pass
        return [[s for s in samples if s is not None] for samples in self.done]

    @distinct_writes()
    def step(self) -> bool:
        """Admit waiting requests that fit and generate the next token of every live row. False when none is
        left.
        """
        if not self.waiting and not self.live:
            return False
        self._admit()
        if self.live:
            states = self._decode()
            self._take(self.live, states, self._logits(states))
            self._retire()
        return True

    def _admit(self) -> None:
        """Prefill as many waiting prompts as fit and sample the first token of their answers."""
        chosen: list[tuple[int, int]] = []
        rows = len(self.live)
        if self.admits * (self.capacity - rows) < self.capacity and rows:
            return
        while self.waiting and self.free and rows + self.requests[self.waiting[0]].count <= self.capacity:
            index = self.waiting.popleft()
            chosen.append((index, self.free.pop()))
            rows += self.requests[index].count
        if not chosen:
            return
        states = [model.prefill(chosen) for model in self.models]
        logits = self._logits(states)
        counts = torch.tensor([self.requests[i].count for i, _ in chosen], device=logits.device)
        new = [
            Row(
                i,
                n,
                slot,
                numpy.random.default_rng([self.requests[i].seed, n]).random(self.requests[i].max_tokens),
            )
            for i, slot in chosen
            for n in range(self.requests[i].count)
        ]
        self._take(new, [s.repeat_interleave(counts, 0) for s in states], logits.repeat_interleave(counts, 1))
        self.live += new
        self._retire()

    def _decode(self) -> list[Tensor]:
        """Decode step: last hidden states (R, H) of every live row, for every model."""
        slots = sorted({row.slot for row in self.live})
        order = {slot: i for i, slot in enumerate(slots)}
        prompt = {row.slot: len(self.requests[row.request].tokens) for row in self.live}
        lengths = torch.tensor([len(row.tokens) - 1 for row in self.live])
        positions = torch.tensor([prompt[row.slot] for row in self.live]) + lengths
        tokens = torch.tensor([[row.tokens[-1] for row in self.live]])
        return [
            model.decode(
                tokens,
                positions[None],
                slots=slots,
                prompt_lengths=torch.tensor([prompt[slot] for slot in slots]),
                width=self.width,
                place=torch.tensor([order[row.slot] * self.width + row.number for row in self.live]),
                lengths=lengths,
            )
            for model in self.models
        ]

    def _logits(self, states: Sequence[Tensor]) -> Tensor:
        """Logits (V, R) to sample from, given hidden states (R, H) of every model."""
        logits = [model.logits(hidden) for model, hidden in zip(self.models, states, strict=True)]
        return self.combine(logits) if self.combine else logits[0]

    def _take(self, rows: Sequence[Row], states: Sequence[Tensor], logits: Tensor) -> None:
        """Sample and append one token per row, from hidden states (R, H) and the logits (V, R)."""
        requests = [self.requests[row.request] for row in rows]
        for i, (row, request) in enumerate(zip(rows, requests, strict=True) if self.returns_top else ()):
            if request.top_logprobs:
                best = logits[:, i].log_softmax(0).topk(min(request.top_logprobs, len(logits)))
                row.top.append(tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        tokens, logprobs = sample(
            logits,
            torch.tensor([row.uniforms[len(row.tokens)] for row in rows], dtype=torch.float64),
            torch.tensor([r.temperature for r in requests]),
            torch.tensor([r.top_k for r in requests]),
            torch.tensor([r.top_p for r in requests]),
        )
        logprobs = self.models[0].unrounded(logprobs, logits, states[0], tokens)
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)

    def _retire(self) -> None:
        """Remove finished rows; the last live row fills each hole, so live rows stay 0..n-1."""
        at = 0
        while at < len(self.live):
            row = self.live[at]
            request = self.requests[row.request]
            ended = row.tokens[-1] in self.stops[row.request] or (
                bool(request.stop_strings) and ends_with(row.tokens, request.stop_strings, self.decode)
            )
            if not ended and len(row.tokens) < request.max_tokens:
                at += 1
                continue
            self.done[row.request][row.number] = Sample(
                tuple(row.tokens), tuple(row.logprobs), "end" if ended else "length", tuple(row.top)
            )
            progress.advance()
            last = self.live.pop()
            if last is not row:
                for model in self.models:
                    model.cache.move(len(self.live), at, len(last.tokens) - 1)
                self.live[at] = last
            if not any(other.slot == row.slot for other in self.live):
                self.free.append(row.slot)
