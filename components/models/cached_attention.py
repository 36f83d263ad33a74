"""KV cache, and attention to it: prefill of prompts, and decoding of answers token by token."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.components.models.attention import SHARED, PackedPlan
from ratchet.components.models.attention_types import Variant


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
        self.cache = cache
        lengths = [len(where) for where in self.index]
        into = torch.tensor(list(slots)).repeat_interleave(torch.tensor(lengths))
        places = [torch.arange(at, at + n) for at, n in zip(kept, lengths, strict=True)]
        self.written, self.into, self.places = (
            t.to(cache.device) for t in (torch.cat(self.index), into, torch.cat(places))
        )
        for slot, prompt in zip(slots, prompts, strict=True):
            cache.held[slot, : len(prompt)] = prompt

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, variant: Variant) -> Tensor:
        for held, new in ((self.cache.prompt_keys, key), (self.cache.prompt_values, value)):
            held[layer][self.into, :, self.places] = new[0].transpose(0, 1)[self.written]
        return super().attend(layer, query, key, value, variant)

    def cached_keys(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        return self.cache.prompt_keys[layer][slot : slot + 1, :, :length], self.cache.prompt_values[layer][
            slot : slot + 1, :, :length
        ]


class Cache:
    """Preallocated KV cache: keys and values of each prompt (once) and of each row's answer.

    prompt (2, layers, slots, kv heads, prompt, d) and own (2, layers, rows, kv heads, answer, d), with the
    dtype and device of the weights; `prompt_keys` and so on: their views by layer. Live rows are always rows
    0..n-1. `held`: the tokens in each prompt slot, also after its rows have ended.
    """

    def __init__(self, model: Any, *, slots: int, prompt: int, rows: int, answer: int) -> None:
        config, like = model.config.get_text_config(), next(model.parameters())
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.prompt = _zeros(like, (2, config.num_hidden_layers, slots, heads, prompt, size))
        self.own = _zeros(like, (2, config.num_hidden_layers, rows, heads, answer, size))
        self.prompt_keys, self.prompt_values = (part.unbind(0) for part in self.prompt)
        self.own_keys, self.own_values = (part.unbind(0) for part in self.own)
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
            self.prompt[:, :, slot, :, :length] = self.prompt[:, :, source, :, :length]
        self.held[slot, :length] = prompt[:length]
        return length

    def move(self, source: int, target: int, length: int) -> None:
        """Copy row `source` to row `target`, to fill the hole of a finished row."""
        self.own[:, :, target, :, :length] = self.own[:, :, source, :, :length]


def _zeros(like: Tensor, shape: Sequence[int]) -> Tensor:
    """As `like.new_zeros(shape)`. On CPU, the system gives a page when it is first written, so that places
    past the end of a prompt or an answer take no memory. Reading them takes none either, which needs a
    private mapping.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    size, private = math.prod(shape) * like.element_size(), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return torch.frombuffer(mmap.mmap(-1, size, flags=private), dtype=like.dtype).view(*shape)


class DecodePlan:
    """Decode step: one new token for each of R live rows. Row r has place `place[r]` in the grid (slots,
    width) of siblings.

    A prompt's keys are read once for all its siblings (as in cascade attention); each row adds its own
    answer's keys. A new plan is built for each step. `slots`: prompts in use, ascending; `prompt_lengths`:
    their lengths, in the same order; `lengths` (R,): answer lengths before this token.
    """

    SPARE = 0
    """Places of the grid after those of the prompts."""

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
        self._prompts = held.to(cache.device)
        self._prepare(blocked)

    def _prepare(self, blocked: Tensor) -> None:
        """What all layers share; `blocked` (R, prompt): places of the prompts where a row has no token."""
        device = self.cache.device
        later = torch.arange(self.own, device=device) > self.lengths[:, None]
        mask = torch.zeros(self.rows, self.prompt + self.own, device=device).masked_fill_(
            torch.cat([blocked, later], 1), -torch.inf
        )
        self._masks: dict[int | None, Tensor] = {None: mask[:, None, None]}
        self.row = torch.arange(self.rows, device=device)
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
            self._grids[size] = rows.new_zeros(self.count * self.width + self.SPARE, kv, group, size)
        grid = self._grids[size].index_copy_(0, self.place, rows)
        if self.SPARE:
            grid = grid[: -self.SPARE]
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
        return grid[self.place] if not self.SPARE else F.pad(grid, (0, 0) * 3 + (0, self.SPARE))[self.place]


class FixedDecodePlan(DecodePlan):
    """A decode step whose shapes and addresses stay the same, for a CUDA graph: over all slots, `own` tokens
    of the answers and all rows of its inputs. Rows that are not live have the place `slots · width`, no
    prompt and no answer.

    place, lengths and prompts (R,): as in `DecodePlan`, `prompts` the lengths of the rows' prompts.
    """

    SPARE = 1

    def __init__(
        self, cache: Cache, *, width: int, own: int, place: Tensor, lengths: Tensor, prompts: Tensor
    ) -> None:
        self.cache, self.width, self.own = cache, width, own
        self.rows, self.count, self.prompt = len(place), cache.prompt.shape[2], cache.prompt.shape[4]
        self.slots = slice(0, self.count)
        self.place, self.lengths, self._prompts = place, lengths, prompts
        self._prepare(torch.arange(self.prompt, device=cache.device) >= prompts[:, None])
