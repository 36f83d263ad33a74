"""Attention backend for all Hugging Face decoders: packed rows without padding, shared prefixes, and KV-cache
decoding.

The model receives one flat row (1, N) of tokens with explicit positions and a keyword argument `plan=`. The
plan defines which token attends to which; the model's own code is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ratchet.components.errors import ContractError

NAME = "ratchet"


@dataclass(frozen=True)
class Variant:
    """How a layer's attention differs from softmax(scale q·k) v over all earlier tokens.

    `window`: a token attends to this many tokens, itself included (Mistral). `softcap`: logits x become
    c tanh(x / c) (Gemma 2). `sinks` (heads,): logits of a token without a value that joins the softmax
    (gpt-oss).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether `F.scaled_dot_product_attention` computes it, given a mask."""
        return self.softcap is None and self.sinks is None

    def weights(self, logits: Tensor, mask: Tensor) -> Tensor:
        """Attention weights (float32) from scaled logits (R, kv, group, keys) or (1, heads, queries, keys),
        which are overwritten.
        """
        logits = logits.float()
        if self.softcap is not None:
            logits = (logits / self.softcap).tanh() * self.softcap
        logits = logits.add_(mask)
        if self.sinks is None:
            return logits.softmax(-1)
        sinks = self.sinks.float().view(logits.shape[1], -1, 1)
        return torch.cat([logits, sinks.expand(*logits.shape[:-1], 1)], -1).softmax(-1)[..., :-1]


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


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of the flat row that the same rows share, and the segments before it in those
    rows.
    """

    length: int
    before: tuple[int, ...]
    cached: tuple[int, int]


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


class PrefillPlan(PackedPlan):
    """Prefill: prompts as one flat row, whose keys and values are written into the free `slots` of `cache`.
    Tokens that a prompt has in common with one in the cache are copied, not computed.
    """

    def __init__(self, prompts: Sequence[Tensor], cache: Cache, slots: Sequence[int]) -> None:
        kept = [cache.keep(slot, prompt) for slot, prompt in zip(slots, prompts, strict=True)]
        super().__init__(
            [prompt[length:] for prompt, length in zip(prompts, kept, strict=True)],
            cached=[(slot if length else 0, length) for slot, length in zip(slots, kept, strict=True)],
        )
        self.cache, self.slots, self.kept = cache, list(slots), kept
        self.written = [where.to(cache.device) for where in self.index]
        for slot, prompt in zip(slots, prompts, strict=True):
            cache.held[slot, : len(prompt)] = prompt

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, variant: Variant) -> Tensor:
        keys, values = self.cache.prompt_keys[layer], self.cache.prompt_values[layer]
        for slot, kept, where in zip(self.slots, self.kept, self.written, strict=True):
            keys[slot, :, kept : kept + len(where)] = key[0][:, where]
            values[slot, :, kept : kept + len(where)] = value[0][:, where]
        return super().attend(layer, query, key, value, variant)

    def cached_keys(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        return self.cache.prompt_keys[layer][slot : slot + 1, :, :length], self.cache.prompt_values[layer][
            slot : slot + 1, :, :length
        ]


class Cache:
    """Preallocated KV cache, one tensor per layer: keys and values of each prompt (once) and of each row's
    answer.

    prompt_* (slots, kv heads, prompt, d); own_* (rows, kv heads, answer, d), with the dtype and device of the
    weights. Live rows are always rows 0..n-1. `held`: the tokens in each prompt slot, also after its rows
    have ended.
    """

    def __init__(self, model: Any, *, slots: int, prompt: int, rows: int, answer: int) -> None:
        config, like = model.config.get_text_config(), next(model.parameters())
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers = range(config.num_hidden_layers)
        self.prompt_keys = [like.new_zeros(slots, heads, prompt, size) for _ in layers]
        self.prompt_values = [like.new_zeros(slots, heads, prompt, size) for _ in layers]
        self.own_keys = [like.new_zeros(rows, heads, answer, size) for _ in layers]
        self.own_values = [like.new_zeros(rows, heads, answer, size) for _ in layers]
        self.device = like.device
        self.held = torch.full((slots, prompt), -1)

    def keep(self, slot: int, prompt: Tensor) -> int:
        """Prepare a free slot for a prompt: copy what the prompt has in common with a prompt in another slot.
        Returns the number of its tokens that need no prefill; its last token always does.
        """
        shared = (self.held[:, : len(prompt) - 1] == prompt[:-1]).long().cumprod(1).sum(1)
        source = int(shared.argmax()) if shared[slot] < shared.max() else slot
        length = int(shared[source])
        self.held[slot] = -1
        if length < SHARED:
            return 0
        if source != slot:
            for tensors in (*self.prompt_keys, *self.prompt_values):
                tensors[slot, :, :length] = tensors[source, :, :length]
        self.held[slot, :length] = prompt[:length]
        return length

    def move(self, source: int, target: int, length: int) -> None:
        """Copy row `source` to row `target`, to fill the hole of a finished row."""
        for own in (*self.own_keys, *self.own_values):
            own[target, :, :length] = own[source, :, :length]


class DecodePlan:
    """Decode step: one new token for each of R live rows. Row r has place `place[r]` in the grid (slots,
    width) of siblings.

    A prompt's keys are read once for all its siblings (as in cascade attention); each row adds its own
    answer's keys. A new plan is built for each step. `slots`: prompts in use, ascending; `prompt_lengths`:
    their lengths, in the same order; `lengths` (R,): answer lengths before this token.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        slots: Sequence[int],
        prompt_lengths: Tensor,
        width: int,
        place: Tensor,
        lengths: Tensor,
    ) -> None:
        self.cache, self.width = cache, width
        self.rows, self.prompt, self.own = len(lengths), int(prompt_lengths.max()), int(lengths.max()) + 1
        held = prompt_lengths[place // width]
        blocked = (torch.arange(self.prompt) >= held[:, None]).to(cache.device)
        used, first, end = torch.tensor(list(slots)), slots[0], slots[-1] + 1
        if 2 * len(slots) > end - first:  # a view; gathering copies the keys and values of every layer
            self.slots, self.count = slice(first, end), end - first
            place = (used - first)[place // width] * width + place % width
        else:
            self.slots, self.count = used.to(cache.device), len(slots)
        self.place, self.lengths = place.to(cache.device), lengths.to(cache.device)
        later = torch.arange(self.own, device=cache.device) > self.lengths[:, None]
        mask = torch.zeros(self.rows, self.prompt + self.own, device=cache.device).masked_fill_(
            torch.cat([blocked, later], 1), -torch.inf
        )
        self._masks: dict[int | None, Tensor] = {None: mask[:, None, None]}
        self._prompts = held.to(cache.device)
        self.row = torch.arange(self.rows, device=cache.device)
        self._grids: dict[int, Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, variant: Variant) -> Tensor:
        heads, kv, size = query.shape[1], key.shape[1], query.shape[-1]
        group = heads // kv
        own_keys, own_values = self.cache.own_keys[layer], self.cache.own_values[layer]
        own_keys[self.row, :, self.lengths] = key[0].transpose(0, 1)
        own_values[self.row, :, self.lengths] = value[0].transpose(0, 1)
        q = query[0].transpose(0, 1).reshape(self.rows, kv, group, size) * variant.scale
        grid = self._grid(q)
        prompt_keys = self.cache.prompt_keys[layer][self.slots, :, : self.prompt]
        prompt_values = self.cache.prompt_values[layer][self.slots, :, : self.prompt]
        shared = self._ungrid(grid @ prompt_keys.transpose(-1, -2), kv, group)
        own = q @ own_keys[: self.rows, :, : self.own].transpose(-1, -2)
        weights = variant.weights(torch.cat([shared, own], -1), self._mask(variant.window)).to(q.dtype)
        out = self._ungrid(self._grid(weights[..., : self.prompt]) @ prompt_values, kv, group)
        out = out + weights[..., self.prompt :] @ own_values[: self.rows, :, : self.own]
        return out.reshape(1, self.rows, heads, size)

    def _mask(self, window: int | None) -> Tensor:
        """(R, 1, 1, prompt + answer): 0 where a row may attend: its prompt and its answer, or what of them is
        within the window of its new token.
        """
        if window not in self._masks:
            starts = torch.zeros_like(self._prompts), self._prompts
            positions = torch.cat(
                [
                    start[:, None] + torch.arange(length, device=self.cache.device)
                    for start, length in zip(starts, (self.prompt, self.own), strict=True)
                ],
                1,
            )
            early = positions <= (self._prompts + self.lengths)[:, None] - window  # pyright: ignore[reportOperatorIssue]
            self._masks[window] = self._masks[None].masked_fill(early[:, None, None], -torch.inf)
        return self._masks[window]

    def _grid(self, rows: Tensor) -> Tensor:
        """(R, kv, group, x) -> (slots, kv, width * group, x). Places without a live row hold arbitrary finite
        values.
        """
        _, kv, group, size = rows.shape
        if (
            size not in self._grids
        ):  # shared by all layers: refilling it in each would cost as much as the products
            self._grids[size] = rows.new_zeros(self.count * self.width, kv, group, size)
        grid = self._grids[size].index_copy_(0, self.place, rows)
        return (
            grid.view(self.count, self.width, kv, group, size)
            .transpose(1, 2)
            .reshape(self.count, kv, self.width * group, size)
        )

    def _ungrid(self, grid: Tensor, kv: int, group: int) -> Tensor:
        """(slots, kv, width * group, x) -> (R, kv, group, x): the places of live rows."""
        grid = (
            grid.view(self.count, kv, self.width, group, -1)
            .transpose(1, 2)
            .reshape(self.count * self.width, kv, group, -1)
        )
        return grid[self.place]
