"""Device placement: this process's GPU, or CPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from ratchet.components.errors import ContractError

M = TypeVar("M", bound=nn.Module)

os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # read at the first cuBLAS call: deterministic matrix products


def here() -> torch.device:
    """The device of this process: its rank's GPU (see `ratchet.components.training.ranks.join`), else CPU.
    Evaluated at model load, not on import.
    """
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def inference_dtype(precision: str) -> torch.dtype:
    """Dtype of weights used for inference: the profile's `precision` on a GPU, float32 on CPU."""
    return torch.float32 if here().type == "cpu" else getattr(torch, precision)


def weights_in(model: nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor] | None:
    """The weights in another precision than float32, in which models are trained; None for float32. Tied
    weights stay one tensor, which transformers writes once.
    """
    if dtype == torch.float32:
        return None
    weights = model.state_dict()
    rounded = {w.data_ptr(): w.to(dtype) if w.is_floating_point() else w for w in weights.values()}
    return {name: rounded[w.data_ptr()] for name, w in weights.items()}


@contextmanager
def distinct_writes() -> Iterator[None]:
    """Context (or decorator) of operations that write every place once: on a GPU, torch's deterministic
    versions of these sort the places first, in a dozen kernels each, for the same result.
    """
    strict = torch.cuda.is_available() and torch.are_deterministic_algorithms_enabled()
    if strict:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        if strict:
            torch.use_deterministic_algorithms(True, warn_only=warns)


def return_free_memory() -> None:
    """Gives freed memory of this process back to the system. On Linux, the C library keeps freed blocks of
    less than 32 MB otherwise: those of activations and moments, gigabytes after training.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def to_device(model: M) -> M:
    """The model, moved to this process's device. `ContractError` if the GPU lacks memory."""
    try:
        return model.to(here())
    except torch.OutOfMemoryError as error:
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        raise ContractError(
            f"{type(model).__name__}: out of GPU memory for its weights of {size / 1e9:.1f} GB; "
            "with `engine: vllm` lower `vllm.cache_gb` in the profile (null takes what a stage needs), "
            "else train fewer parameters (adapter: {name: lora}) or use a smaller model"
        ) from error
