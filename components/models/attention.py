"""Attention backend for all Hugging Face decoders: packed rows without padding, shared prefixes, and KV-cache
decoding.

The model receives one flat row (1, N) of tokens with explicit positions and a keyword argument `plan=`. The
plan defines which token attends to which; the model's own code is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ratchet.components.errors import ContractError
from ratchet.components.models import varlen_attention
from ratchet.components.models.attention_types import Segment, Variant

NAME = "ratchet"


class Plan(Protocol):
    """Attention over a flat row: query (1, heads, N, d), key and value (1, kv heads, N, d) -> (1, N, heads,
    d).
    """

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, variant: Variant) -> Tensor: ...


def register() -> None:
    """Register `attn_implementation="ratchet"` with transformers. No attention mask is built for it; the plan
    defines it.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    plan: Plan | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface. `ContractError` for a call without a plan or with a mask."""
    if plan is None:
        raise ContractError(
            "a model loaded with attention='ratchet' was called without plan=; call it through "
            "ratchet.components.models.forward, or load it with attention='sdpa'"
        )
    if attention_mask is not None:
        raise ContractError("attention_mask is not supported: pack rows instead of padding them")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    variant = Variant(scale, sliding_window, softcap, s_aux)
    return plan.attend(module.layer_idx, query, key, value, variant), None  # pyright: ignore[reportArgumentType]


SHARED = 8
"""Shortest prefix, in tokens, that is worth storing apart."""


class PackedPlan:
    """Packs rows of tokens into one flat row, as a prefix tree: tokens that rows have in common from their
    start (a system prompt, the prompt of several answers) are stored and computed once.

    tokens, positions (1, N); `index[b]` (T_b,): positions of row b's tokens in the flat row. `cached[b]`
    (slot, length): row b continues that many tokens held elsewhere, which a subclass provides by
    `cached_keys`.
    """

    def __init__(self, rows: Sequence[Tensor], *, cached: Sequence[tuple[int, int]] = ()) -> None:
        self.segments: list[Segment] = []
        self._flat: list[Tensor] = []
        self._places: list[Tensor] = []
        self.index = [torch.zeros(0, dtype=torch.long)] * len(rows)
        keys = [
            (start, row.tolist()) for start, row in zip(cached or [(0, 0)] * len(rows), rows, strict=True)
        ]
        ordered = sorted(range(len(rows)), key=keys.__getitem__)
        for start, members in groupby(ordered, key=lambda b: keys[b][0]):
            self._add([(b, rows[b]) for b in members], depth=0, cached=start, before=())
        self.tokens = torch.cat(self._flat)[None] if rows else torch.zeros(1, 0, dtype=torch.long)
        self.positions = torch.cat(self._places)[None] if rows else torch.zeros(1, 0, dtype=torch.long)
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}
        self._layout: varlen_attention.Layout | None = None

    def _add(
        self,
        rows: Sequence[tuple[int, Tensor]],
        *,
        depth: int,
        cached: tuple[int, int],
        before: tuple[int, ...],
    ) -> None:
        """Add sorted rows that have their first `depth` tokens in common, which are the segments `before`."""
        first = 0
        while first < len(rows):
            last, end = first + 1, len(rows[first][1])
            while last < len(rows):
                shared = common_prefix(rows[first][1], rows[last][1])
                if shared < depth + SHARED and shared < len(rows[last][1]):
                    break
                last, end = (
                    last + 1,
                    shared,
                )  # sorted: the last of a run has the shortest prefix in common with the first
            places = torch.arange(depth, end)
            at = sum(map(len, self._flat))
            self._flat.append(rows[first][1][depth:end])
            self._places.append(places + cached[1])
            for b, _ in rows[first:last]:
                self.index[b] = torch.cat([self.index[b], places - depth + at])
            path = (*before, len(self.segments))
            self.segments.append(Segment(end - depth, before, cached))
            if last - first > 1:
                self._add(
                    [row for row in rows[first:last] if len(row[1]) > end],
                    depth=end,
                    cached=cached,
                    before=path,
                )
            first = last

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, variant: Variant) -> Tensor:
        if varlen_attention.has_kernel(query, variant):
            self._layout = self._layout or varlen_attention.Layout(self.segments, query.device)
            cached = [self.cached_keys(layer, *part) for part in self._layout.cached]
            return self._layout.attend(query, key, value, cached, variant)
        repeat = query.shape[1] // key.shape[1]
        if repeat > 1:
            key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
        # One split instead of a slice per segment: the backward of each slice fills a tensor as large as the
        # whole row.
        sizes = [segment.length for segment in self.segments]
        keys, values = key.split(sizes, 2), value.split(sizes, 2)
        out: list[Tensor] = []
        for number, (segment, q) in enumerate(zip(self.segments, query.split(sizes, 2), strict=True)):
            k, v = (
                [keys[i] for i in (*segment.before, number)],
                [values[i] for i in (*segment.before, number)],
            )
            if segment.cached[1]:
                cached_key, cached_value = (
                    t.repeat_interleave(repeat, 1) for t in self.cached_keys(layer, *segment.cached)
                )
                k, v = [cached_key, *k], [cached_value, *v]
            before = sum(part.shape[2] for part in k) - segment.length
            narrow = variant.window is not None and variant.window < before + segment.length
            if not before and not narrow and variant.plain:
                attended = F.scaled_dot_product_attention(q, k[0], v[0], is_causal=True, scale=variant.scale)
            else:
                mask = self._mask(before, segment.length, variant.window if narrow else None, q)
                attended = _attention(q, torch.cat(k, 2), torch.cat(v, 2), mask, variant)
            out.append(attended)
        return torch.cat(out, 2).transpose(1, 2)

    def cached_keys(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values (1, kv heads, length, d) of the first `length` tokens in `slot`."""
        raise ContractError("rows that continue cached tokens need a plan with a cache; use PrefillPlan")

    def _mask(self, prefix: int, length: int, window: int | None, like: Tensor) -> Tensor:
        """(length, prefix + length): 0 where a token after a prefix may attend, -inf for later tokens and
        those before its window.
        """
        if (prefix, length, window) not in self._masks:
            mask = torch.full((length, prefix + length), -torch.inf, dtype=like.dtype, device=like.device)
            mask = mask.triu(prefix + 1)
            if window is not None:
                early = torch.ones_like(mask, dtype=torch.bool).tril(prefix - window)
                mask = mask.masked_fill(early, -torch.inf)
            self._masks[prefix, length, window] = mask
        return self._masks[prefix, length, window]


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, variant: Variant) -> Tensor:
    """Attention of queries (1, heads, n, d) to keys and values (1, heads, m, d) under a mask (n, m)."""
    if variant.plain:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=variant.scale)
    weights = variant.weights(query @ key.transpose(-1, -2) * variant.scale, mask)
    return weights.to(value.dtype) @ value


def common_prefix(a: Tensor, b: Tensor) -> int:
    """Number of tokens that two rows have in common from their start."""
    both = min(len(a), len(b))
    return int((a[:both] == b[:both]).long().cumprod(0).sum())
