"""Low-rank adaptation, through peft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from components.piece import piece

if TYPE_CHECKING:
    from torch.nn import Module


@piece(paper="arXiv:2106.09685")
def lora(model: Module, *, rank: int = 16, alpha: float = 32.0, dropout: float = 0.0, dora: bool = False, rslora: bool = False,
         targets: str | list = "all-linear") -> Module:
    """W + (alpha / rank) B A on every linear layer but the output (`targets`); B starts at 0, so the model is unchanged at
    first. `dora` splits off the magnitude (arXiv 2402.09353), `rslora` scales by alpha / sqrt(rank) (arXiv 2312.03732).
    Scalar heads, new when added, learn in full. Dropout is 0 by default: on-policy ratios must be 1 at first.
    """
    from peft import LoraConfig, get_peft_model

    heads = sorted({name.split(".")[-1] for name, _ in model.named_modules()} & {"score", "value_head", "v_head"})
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, use_dora=dora, use_rslora=rslora,
                        target_modules=targets, modules_to_save=heads or None)
    return get_peft_model(model, config)


def merge(model: Module) -> Module:
    """The plain model with the adaptation added to its weights: what is saved and loaded by others."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
