"""Matrix products of float32 models: in float32 or mixed precision, on CPU through oneDNN where it is faster
than torch's default BLAS.

torch uses MKL for float32, whose AVX-512 kernels are for Intel CPUs only. oneDNN, bundled with torch for
bfloat16, uses AVX-512 on any CPU: on two Zen 5 cores it is about twice as fast, and three times for few rows
times the vocabulary. Without AVX-512, torch's BLAS is used.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIXED = False
"""Whether the layers of this process's models multiply in bfloat16, see `product_precision`."""
CACHED = "32"
"""Capacity of the primitive caches of oneDNN and of torch's layer over it: more than the distinct shapes of a
training step. An entry takes 0.7 MB and the default is 1,000 entries each, which batches of varying length
would fill.
"""
for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(variable, CACHED)  # read at the first product


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this CPU has AVX-512 and this torch build has oneDNN."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith(
        "AVX512"
    )


@functools.cache
def has_bfloat16() -> bool:
    """Whether bfloat16 products are computed in hardware here, not emulated."""
    return (
        torch.cuda.is_bf16_supported(including_emulation=False)
        if torch.cuda.is_available()
        else torch.cpu._is_avx512_bf16_supported()
    )


@contextmanager
def product_precision(precision: str) -> Iterator[None]:
    """Context (or decorator) of the precision of the layers' matrix products in this process. `bfloat16`:
    mixed precision, where hardware has it: the layers of float32 models convert the operands to bfloat16 and
    the product back, as torch.autocast does; the output layer rounds its operands and, where answers are
    sampled, the logits. Weights, gradients, residuals, norms, attention, softmax and scalar heads stay
    float32.
    """
    global MIXED
    before, MIXED = MIXED, precision == "bfloat16" and has_bfloat16()
    try:
        yield
    finally:
        MIXED = before


@contextmanager
def rounded_products() -> Iterator[None]:
    """Context in which products of float32 matrices round their operands and sum in float32, where the layers
    multiply in bfloat16 (see `product_precision`): to bfloat16 on CPU, to TF32 on a GPU, which leaves
    bfloat16 values as they are. The results are not rounded.
    """
    backend: Any = torch.backends.cuda if torch.cuda.is_available() else torch.backends.mkldnn
    before = backend.matmul.fp32_precision
    if MIXED:
        backend.matmul.fp32_precision = "tf32" if torch.cuda.is_available() else "bf16"
    try:
        yield
    finally:
        backend.matmul.fp32_precision = before


def mixed_precision() -> bool:
    """Whether the layers of this process's models multiply in bfloat16 now."""
    return MIXED


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows (…, K) · weight (N, K)ᵀ + bias (N,): (…, N), as `F.linear`, differentiable. Either matrix may be a
    transposed view.
    """
    if (
        not all(t.dtype == torch.float32 and t.device.type == "cpu" and t.numel() for t in (rows, weight))
        or not onednn_is_faster()
    ):
        return F.linear(rows, weight, bias)
    return _Product.apply(rows, weight, bias) if torch.is_grad_enabled() else _onednn(rows, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear` of a layer, computed by `product` or in mixed precision."""

    packed: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        if self.packed is not None and not torch.is_grad_enabled():
            out = _onednn(input.to(self.packed.dtype), self.packed).to(input.dtype)
            return out if self.bias is None else out.add_(self.bias)
        if MIXED and input.dtype == self.weight.dtype == torch.float32 and input.numel():
            return _MixedProduct.apply(input, self.weight, self.bias)
        return product(input, self.weight, self.bias)


def speed_up(model: nn.Module) -> None:
    """Convert every `nn.Linear` of a model to `Linear` in place; parameters and names are unchanged."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear


@contextmanager
def packed(model: nn.Module, rows: int) -> Iterator[None]:
    """Context for many products of about `rows` rows with weights that do not change: every `Linear` also
    holds its weight in oneDNN's own layout (and precision, see `product_precision`), to which it is otherwise
    converted in every product. Results are the same.
    """
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, Linear)
        and layer.weight.dtype == torch.float32
        and layer.weight.device.type == "cpu"
    ]
    for layer in layers if onednn_is_faster() else []:
        weight = layer.weight.detach()
        layer.packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16() if MIXED else weight, rows)
    try:
        yield
    finally:
        for layer in layers:
            layer.packed = None


def _onednn(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """Autograd function. y = x Wᵀ + b;  dx = dy W,  dW = dyᵀ x,  db = Σ dy. Saves only what the requested
    gradients need.
    """

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


class _MixedProduct(torch.autograd.Function):
    """`_Product` of float32 matrices through bfloat16. The bias and its gradient are not rounded."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_rows, needs_weight, _ = ctx.needs_input_grad
        half, other = rows.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(half if needs_weight else None, other if needs_rows else None)
        out = _bfloat16(half, other)
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        rows, weight = ctx.saved_tensors
        half = grads[0].bfloat16()
        flat = half.reshape(-1, half.shape[-1])
        return (
            None if weight is None else _bfloat16(half, weight.t()),
            None if rows is None else _bfloat16(flat.t(), rows.reshape(-1, rows.shape[-1]).t()),
            grads[0].reshape(flat.shape).sum(0) if ctx.needs_input_grad[2] else None,
        )


def _bfloat16(rows: Tensor, weight: Tensor) -> Tensor:
    """Product of bfloat16 matrices, as float32."""
    onednn = torch.backends.mkldnn.is_available() and rows.device.type == "cpu"
    return (_onednn(rows, weight) if onednn else F.linear(rows, weight)).float()
