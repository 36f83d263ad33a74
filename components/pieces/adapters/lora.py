"""Adapter `lora`: low-rank adaptation through peft."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Bool, Count, Natural, Positive

if TYPE_CHECKING:
    from torch.nn import Module


HEADS = {"score", "value_head", "v_head"}


@piece(paper="arXiv:2106.09685")
def lora(
    model: Module,
    *,
    rank: Count = 16,
    alpha: Positive = 32.0,
    dora: Bool = False,
    rslora: Bool = False,
    targets: str | list[str] = "all-linear",
    seed: Natural = 0,
) -> Module:
    """W + (alpha / rank) B A on every linear layer except output layer and heads (`targets`); B is
    initialised to 0, so the model is initially unchanged. `dora` decomposes the magnitude (arXiv 2402.09353),
    `rslora` scales by alpha / sqrt(rank) (arXiv 2312.03732). `targets`: names of layers, or regular
    expressions for their whole names. Scalar heads are trained in full. There is no dropout, since on-policy
    ratios must start at 1. `seed` initialises A deterministically in every process.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    from ratchet.components.models.value import PolicyWithValue

    heads = sorted({name.split(".")[-1] for name, _ in model.named_modules()} & HEADS)
    linear, chosen = linear_layers(model), list[str]()
    for target in [targets] if isinstance(targets, str) else targets:
        try:
            pattern = re.compile(".*" if target == "all-linear" else target)
        except re.error as error:
            raise RecipeError(
                f"adapter lora: targets: {target!r} is no regular expression: {error}"
            ) from None
        found = [name for name in linear if pattern.fullmatch(name) or name.endswith(f".{target}")]
        if not found:
            layers = {name.split(".")[-1] for name in linear}
            raise RecipeError(
                f"adapter lora: targets: no linear layer is called {target!r}{nearest(target, layers)}; the "
                "output layer, heads and embeddings have no adapter"
            )
        chosen += found
    if not chosen:
        raise RecipeError("adapter lora: targets: got no layer; leave it out to adapt all linear layers")
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType]
        use_dora=dora,
        use_rslora=rslora,
        target_modules=chosen,
        modules_to_save=heads or None,
    )
    if isinstance(model, PolicyWithValue):
        setattr(model, "base_model_prefix", "policy")  # noqa: B010  # peft asks for it: of mixtures of experts, and of LLaVA
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def linear_layers(model: Module) -> list[str]:
    """peft's `all-linear`, also for wrapped policies and backbones: without heads and the output layer, whose
    weight the log-probs read directly.
    """
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    outputs = [m.get_output_embeddings() for m in model.modules() if hasattr(m, "get_output_embeddings")]  # pyright: ignore[reportCallIssue]
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, Linear | Conv1D)
        and name.split(".")[-1] not in HEADS
        and not any(module is output for output in outputs)
    ]


def merge(model: Module) -> Module:
    """The model with adapter weights merged, as saved for other programs."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model  # pyright: ignore[reportCallIssue]
