"""Attention of a packed row on a GPU: one call of FlashAttention's variable-length kernel a layer, through
`torch.nn.attention.varlen`, instead of one call a segment.

Keys and values of a shared prefix are gathered for every segment that follows it, so that each segment's keys
are consecutive; the kernel aligns its causal mask with their end, where the segment's own tokens are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from ratchet.components.models.attention_types import Segment, Variant
from ratchet.components.models.products import mixed_precision

HALF = (torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
"""FlashAttention 2 has kernels for heads of up to this size, in steps of 8."""


def has_kernel(query: Tensor, variant: Variant) -> bool:
    """Whether FlashAttention computes this: on a GPU, in half precision (also of mixed precision, whose
    queries are float32), without a soft cap or sinks.
    """
    half = query.dtype in HALF or (query.dtype == torch.float32 and mixed_precision())
    size = query.shape[-1]
    return query.device.type == "cuda" and half and variant.plain and size % 8 == 0 and size <= LARGEST_HEAD


class Layout:
    """Where the kernel finds the queries and keys of every segment: the same in all layers.

    `starts` and `key_starts` (segments + 1,): int32 offsets of queries and keys. `gathered` (K,): positions
    in [cached parts, flat row] of all keys in order, None if these are the flat row itself. `cached`: (slot,
    length) of the parts of the cache that precede the flat row.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self.cached = list(dict.fromkeys(s.cached for s in segments if s.cached[1]))
        parts = [length for _, length in self.cached] + [s.length for s in segments]
        ends = torch.tensor(parts).cumsum(0).tolist()
        spans = [torch.arange(end - length, end) for end, length in zip(ends, parts, strict=True)]
        cached = dict(zip(self.cached, spans, strict=False))
        own = spans[len(self.cached) :]
        keys = [
            torch.cat(
                [*([cached[s.cached]] if s.cached[1] else []), *(own[i] for i in s.before), own[number]]
            )
            for number, s in enumerate(segments)
        ]
        lengths, key_lengths = [s.length for s in segments], [len(k) for k in keys]
        self.starts, self.key_starts = _offsets(lengths).to(device), _offsets(key_lengths).to(device)
        self.longest, self.longest_keys = max(lengths), max(key_lengths)
        shared = bool(self.cached) or any(s.before for s in segments)
        self.gathered = torch.cat(keys).to(device) if shared else None

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cached: Sequence[tuple[Tensor, Tensor]],
        variant: Variant,
    ) -> Tensor:
        """(1, N, heads, d) for query (1, heads, N, d), key and value (1, kv heads, N, d) and the `cached`
        keys and values (1, kv heads, length, d).
        """
        dtype = query.dtype if query.dtype in HALF else torch.bfloat16
        group = query.shape[1] // key.shape[1]
        keys, values = (
            self._gather([*earlier, own], group).to(dtype)
            for earlier, own in (([k for k, _ in cached], key), ([v for _, v in cached], value))
        )
        out = varlen_attn(
            query[0].transpose(0, 1).to(dtype).contiguous(),
            keys,
            values,
            self.starts,
            self.key_starts,
            self.longest,
            self.longest_keys,
            scale=variant.scale,
            window_size=(-1 if variant.window is None else variant.window - 1, 0),
        )
        assert isinstance(out, Tensor)
        return out[None].to(query.dtype)

    def _gather(self, parts: Sequence[Tensor], group: int) -> Tensor:
        """(1, kv heads, length, d) each: (K, heads, d)"""
        rows = (parts[0] if len(parts) == 1 else torch.cat(list(parts), 2))[0].transpose(0, 1)
        if self.gathered is not None:
            rows = rows[self.gathered]
        return rows.repeat_interleave(group, 1) if group > 1 else rows.contiguous()


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
