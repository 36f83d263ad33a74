"""A GPU that is not there: tensors that say they are elsewhere, compute on the host, and refuse what a GPU
refuses.

Arithmetic is the host's, so results must be the host's bit for bit, and what is left to be wrong is where
things lie. Stricter than a
GPU: indices on the host are refused too, for each would be a transfer in the middle of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ratchet.components.models import device

DEVICE = torch.device("lazy", 0)
"""Of the devices this torch has no code for, one whose backward pass its autograd runs all the same."""
CROSSING = ("aten::_to_copy", "aten::to", "aten::copy_")
"""What may read from one place and write to the other."""


class There(Tensor):
    """A tensor on the pretended device; `held` has its data."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> There:
        laid = (
            {"layout": held.layout}
            if held.is_sparse
            else {"strides": held.stride(), "storage_offset": held.storage_offset()}
        )
        with torch.inference_mode(False):  # a view of a weight must count the weight's changes
            made = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=DEVICE, **laid)
        made.held = held
        return made

    def __tensor_flatten__(
        self,
    ) -> tuple[list[str], None]:  # with its inverse: a parameter that moves stays the parameter it was
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> There:
        return There(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.held.tolist()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    __torch_function__ = torch._C._disabled_torch_function_impl


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [isinstance(x, There) for x in tensors]
    if (
        func._schema.name not in CROSSING
        and any(there)
        and any(not far and x.dim() for far, x in zip(there, tensors))
    ):
        raise RuntimeError(
            f"{func}: expected all tensors to be on the same device, got "
            f"{[f'{x.device} {tuple(x.shape)}' for x in tensors]}"
        )
    asked = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.device)]
    far = asked[0] == DEVICE if asked else any(there)
    held_args, held_kwargs = tree_map(_held, (args, kwargs))
    out = func(*held_args, **held_kwargs)
    returns = func._schema.returns
    if returns and returns[0].alias_info is not None and returns[0].alias_info.is_write:
        return kwargs.get("out", args[0])  # written in place
    return tree_map(lambda x: There(x) if isinstance(x, Tensor) and far else x, out)


def _held(x: Any) -> Any:
    return (
        x.held
        if isinstance(x, There)
        else torch.device("cpu")
        if isinstance(x, torch.device) and x == DEVICE
        else x
    )


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


@contextmanager
def pretended() -> Iterator[torch.device]:
    """Inside, models are placed on the pretended device."""
    lifting = torch._C._only_lift_cpu_tensors()
    with pytest.MonkeyPatch.context() as patch, _Mode():
        patch.setattr(device, "here", lambda: DEVICE)
        patch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cpu", DEVICE.type])
        torch._C._set_only_lift_cpu_tensors(
            True
        )  # torch.tensor(..., device=...) goes over by a copy that we see
        try:
            yield DEVICE
        finally:
            torch._C._set_only_lift_cpu_tensors(lifting)
