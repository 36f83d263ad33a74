"""Adapter `lora`: low-rank adaptation through peft."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import BelowOne, Bool, Count, Natural, Positive

if TYPE_CHECKING:
    from torch.nn import Module


HEADS = {"score", "value_head", "v_head"}


@piece(paper="arXiv:2106.09685")
def lora(
    model: Module,
    *,
    rank: Count = 16,
    alpha: Positive = 32.0,
    dropout: BelowOne = 0.0,
    dora: Bool = False,
    rslora: Bool = False,
    targets: str | list = "all-linear",
    seed: Natural = 0,
) -> Module:
    """W + (alpha / rank) B A on every linear layer except output layer and heads (`targets`); B is
    initialised to 0, so the model is initially unchanged. `dora` decomposes the magnitude (arXiv 2402.09353),
    `rslora` scales by alpha / sqrt(rank) (arXiv 2312.03732). Scalar heads are trained in full. Dropout
    defaults to 0, since on-policy ratios must start at 1. `seed` initialises A deterministically in every
    process.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    heads = sorted({name.split(".")[-1] for name, _ in model.named_modules()} & HEADS)
    for target in (
        [targets] if isinstance(targets, str) else targets
    ):  # peft accepts a list of names, or a pattern
        if target != "all-linear" and not any(
            re.fullmatch(str(target), name) or name.endswith(f".{target}")
            for name, _ in model.named_modules()
        ):
            layers = {name.split(".")[-1] for name in linear_layers(model)}
            raise RecipeError(
                f"adapter lora: targets: the model has no module {target!r}{nearest(str(target), layers)}"
            )
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=dropout,
        use_dora=dora,
        use_rslora=rslora,
        target_modules=linear_layers(model) if targets == "all-linear" else targets,
        modules_to_save=heads or None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def linear_layers(model: Module) -> list[str]:
    """peft's `all-linear`, also for wrapped policies and backbones: without heads and the output layer, whose
    weight the log-probs read directly.
    """
    from torch.nn import Linear

    outputs = [m.get_output_embeddings() for m in model.modules() if hasattr(m, "get_output_embeddings")]  # pyright: ignore[reportCallIssue]
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, Linear)
        and name.split(".")[-1] not in HEADS
        and not any(module is output for output in outputs)
    ]


def merge(model: Module) -> Module:
    """The model with adapter weights merged, as saved for other programs."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model  # pyright: ignore[reportCallIssue]
