"""Only the head learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece

if TYPE_CHECKING:
    from torch.nn import Module

HEADS = ("score", "value_head", "v_head", "lm_head")


@piece(paper="arXiv:2203.02155")
def head_only(model: Module) -> Module:
    """The scalar head learns (reward or value), or the output layer where there is none; the backbone stays fixed. An output
    layer tied to the embeddings is a `RecipeError`: it would move them.
    """
    found = next((module for head in HEADS for name, module in model.named_modules() if name.split(".")[-1] == head), None)
    if found is None:
        raise RecipeError(f"adapter head_only: {type(model).__name__} has none of {', '.join(HEADS)}")
    get = getattr(model, "get_input_embeddings", None)
    if get is not None and any(p is q for p in found.parameters() for q in get().parameters()):
        raise RecipeError(f"adapter head_only: the head of {type(model).__name__} is tied to its embeddings; use `top_layers`")
    model.requires_grad_(False)
    found.requires_grad_(True)
    return model
