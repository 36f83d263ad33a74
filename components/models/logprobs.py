"""Fused linear cross-entropy: log-probs and entropies of given tokens in chunks, without materialising all
logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ratchet.components.models.products import product, rounded_products

CHUNK = 256
"""Positions per chunk on CPU: 256 x 49,152 float32 logits are 50 MB."""
CHUNK_BYTES = 2**28
"""Float32 logits per chunk on a GPU."""


def chosen_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    entropy: bool = False,
    bias: Tensor | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(z)[target] (N,) and optionally the entropy in nats (N,), with logits z = h W^T + b, or
    c tanh((h W^T + b) / c) with a `softcap` c.

    hidden (N, H), weight (V, H), targets (N,). Differentiable in hidden, weight and bias; only `chunk`
    positions' logits exist at a time, forward and backward. With a frozen weight, d/dh (N, H) is computed in
    the forward pass, so the backward needs no product with W. With a `weight.main_grad` of its shape, the
    gradient is added there instead of being returned (as Megatron-LM's fused accumulation does).
    """
    if chunk is None:
        chunk = CHUNK if hidden.device.type == "cpu" else max(CHUNK, CHUNK_BYTES // (4 * len(weight)))
    logprobs, entropies = _Chosen.apply(hidden, weight, bias, targets, entropy, softcap, chunk)
    return logprobs, entropies if entropy else None


class _Chosen(torch.autograd.Function):
    """Autograd function. d logp_y / dz = e_y - p;  d H / dz_v = -p_v (log p_v + H), with z the logits. Of a
    soft cap, dz / dx = 1 - (z / c)².
    """

    @staticmethod
    @rounded_products()
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        entropy: bool,
        softcap: float | None,
        chunk: int,
    ):
        number = len(hidden)
        logprobs = hidden.new_empty(number)
        entropies = hidden.new_zeros(number if entropy else 0)
        normaliser = hidden.new_empty(number)
        needs_hidden, needs_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        needs_bias = bias is not None and ctx.needs_input_grad[2]
        early = needs_hidden and not needs_weight and not needs_bias
        slope = hidden.new_empty(hidden.shape) if early else None
        entropy_slope = hidden.new_empty(hidden.shape) if early and entropy else None
        for at in range(0, number, chunk):
            piece = slice(at, at + chunk)
            logits = _logits(hidden[piece], weight, bias, softcap)
            chosen = logits.gather(1, targets[piece, None])[:, 0]
            lse = torch.logsumexp(logits, 1)
            normaliser[piece] = lse
            logprobs[piece] = chosen - lse
            if not entropy and not early:
                continue
            p = (logits - lse[:, None]).exp_()
            if entropy:
                entropies[piece] = lse - (p * logits).sum(1)
            by_cap = None if softcap is None else _cap_slope(logits, softcap)
            if slope is not None and by_cap is None:
                slope[piece] = weight[targets[piece]] - product(p, weight.t())
            elif slope is not None and by_cap is not None:
                into = (-p).scatter_add_(1, targets[piece, None], torch.ones_like(p[:, :1]))
                slope[piece] = product(into.mul_(by_cap), weight.t())
            if entropy_slope is not None:
                into = _entropy_slope(p, logits, lse, entropies[piece])
                into = into if by_cap is None else into.mul_(by_cap)
                entropy_slope[piece] = product(into, weight.t())
        ctx.entropy, ctx.softcap, ctx.chunk, ctx.early = entropy, softcap, chunk, early
        if early:
            ctx.save_for_backward(slope, entropy_slope)
        else:
            ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropies)
        return logprobs, entropies

    @staticmethod
    @rounded_products()
    def backward(ctx: Any, *grads: Tensor):
        by_logprob, by_entropy = grads
        if ctx.early:
            slope, entropy_slope = ctx.saved_tensors
            into_hidden = by_logprob[:, None] * slope
            if ctx.entropy:
                into_hidden += by_entropy[:, None] * entropy_slope
            return into_hidden, None, None, None, None, None, None
        hidden, weight, bias, targets, normaliser, entropies = ctx.saved_tensors
        into_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        buffer = getattr(weight, "main_grad", None)
        into_weight = (
            None if not ctx.needs_input_grad[1] else torch.zeros_like(weight) if buffer is None else buffer
        )
        into_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for at in range(0, len(hidden), ctx.chunk):
            piece = slice(at, at + ctx.chunk)
            logits = _logits(hidden[piece], weight, bias, ctx.softcap)
            by_cap = None if ctx.softcap is None else _cap_slope(logits, ctx.softcap)
            lse = normaliser[piece]
            g = by_logprob[piece, None]
            if ctx.entropy:
                p = (logits - lse[:, None]).exp_()
                into = (
                    _entropy_slope(p, logits, lse, entropies[piece])
                    .mul_(by_entropy[piece, None])
                    .sub_(p.mul_(g))
                )
            else:
                into = logits.sub_(lse[:, None]).exp_().mul_(-g)
            into.scatter_add_(1, targets[piece, None], g)
            into = into if by_cap is None else into.mul_(by_cap)
            if into_hidden is not None:
                into_hidden[piece] = product(into, weight.t())
            if into_weight is not None:
                into_weight.addmm_(into.t(), hidden[piece])
            if into_bias is not None:
                into_bias += into.sum(0)
        return into_hidden, into_weight if buffer is None else None, into_bias, None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    """Logits (n, V) of hidden states (n, H)."""
    logits = product(hidden, weight, bias)
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


def _cap_slope(logits: Tensor, softcap: float) -> Tensor:
    """dz/dx of z = c tanh(x / c), from z."""
    return 1 - (logits / softcap).square()


def _entropy_slope(p: Tensor, logits: Tensor, lse: Tensor, entropy: Tensor) -> Tensor:
    """dH/dz = -p (log p + H); 0 where p is 0."""
    return torch.where(p > 0, (logits - (lse - entropy)[:, None]) * p, 0.0).neg_()
