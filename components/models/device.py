"""Where models compute: on the GPU this process was given, on the host where there is none."""

from __future__ import annotations

import os
from typing import TypeVar

import torch
from torch import nn

from ratchet.components.errors import ContractError

M = TypeVar("M", bound=nn.Module)

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at a GPU's first product: the same numbers from the same numbers


def here() -> torch.device:
    """The GPU of this process: the first it sees, or its rank's (`ratchet.components.training.ranks.join`). Asked when a model is loaded, never on import."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def answering(precision: str) -> torch.dtype:
    """The type of weights that only answer: the learner's `precision` on a GPU, whose memory it halves, float32 on the host."""
    return torch.float32 if here().type == "cpu" else getattr(torch, precision)


def placed(model: M) -> M:
    """The model where it computes, itself. `ContractError` when the GPU has no room for it beside what is there."""
    try:
        return model.to(here())
    except torch.OutOfMemoryError as error:
        held = sum(p.numel() * p.element_size() for p in model.parameters())
        raise ContractError(f"{type(model).__name__}: its weights take {held / 1e9:.1f} GB and the GPU has no room for them beside what is "
                            "there; with `engine: vllm` let `vllm.cache_gb` in the profile leave some (null takes nearly all), else learn "
                            "less (adapter: {name: lora}) or take a smaller model") from error
