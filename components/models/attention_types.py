"""Types of attention over a packed row: how a layer attends, and the segments of the row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of the flat row that the same rows share, and the segments before it in those
    rows.
    """

    length: int
    before: tuple[int, ...]
    cached: tuple[int, int]
