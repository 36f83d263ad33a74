"""Products of float32 matrices on a CPU: by oneDNN where it is the faster library, by torch's BLAS elsewhere.

torch multiplies float32 matrices by MKL, which keeps its AVX-512 kernels for Intel's processors. oneDNN, which torch brings along and
uses for bfloat16, takes them on any: on two cores of a Zen 5 it is about twice as fast, and three times where few rows meet the
vocabulary. Without AVX-512 torch's own stay.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CACHED = "32"
"""Products of different shapes that are remembered by oneDNN and by torch's layer over it: more than a training step makes. Each
takes 0.7 MB, and a thousand of each are the default; batches of every length would fill them."""
for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(variable, CACHED)  # read when the first product is made


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this processor has AVX-512 and this torch has oneDNN."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows (…, K) · weight (N, K)ᵀ + bias (N,): (…, N), as `F.linear`, with its gradients. Either may be a transposed view."""
    if not all(t.dtype == torch.float32 and t.device.type == "cpu" and t.numel() for t in (rows, weight)) or not onednn_is_faster():
        return F.linear(rows, weight, bias)
    return _Product.apply(rows, weight, bias) if torch.is_grad_enabled() else _onednn(rows, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear` by `product`."""

    def forward(self, input: Tensor) -> Tensor:
        return product(input, self.weight, self.bias)


def speed_up(model: nn.Module) -> None:
    """Every plain linear layer of a model becomes a `Linear`: the same parameters under the same names."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear


def _onednn(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """y = x Wᵀ + b;  dx = dy W,  dW = dyᵀ x,  db = Σ dy. Keeps what the gradients that are asked for need."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_rows, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(rows if needs_weight else None, weight if needs_rows else None)
        return _onednn(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        (into,) = grads
        rows, weight = ctx.saved_tensors
        flat = into.reshape(-1, into.shape[-1])
        return (
            None if weight is None else _onednn(into, weight.t()),
            None if rows is None else _onednn(flat.t(), rows.reshape(-1, rows.shape[-1]).t()),
            flat.sum(0) if ctx.needs_input_grad[2] else None,
        )
