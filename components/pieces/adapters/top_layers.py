"""Adapter `top_layers`: only the last layers are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count

if TYPE_CHECKING:
    from torch.nn import Module, ModuleList


def blocks(model: Module) -> ModuleList:
    """The transformer blocks of the model, of a vision-language model those of its text decoder: the longest
    `ModuleList`.
    """
    from torch.nn import ModuleList

    vision = {id(inner) for tower in vision_parts(model) for inner in tower.modules()}
    lists = [
        module
        for module in model.modules()
        if isinstance(module, ModuleList) and len(module) and id(module) not in vision
    ]
    if not lists:
        raise RecipeError(f"adapter top_layers: {type(model).__name__} has no list of layers; use `full`")
    return max(lists, key=len)


def vision_parts(model: Module) -> list[Module]:
    """The vision tower and its projector, in transformers' names."""
    names = ("vision_tower", "multi_modal_projector")
    return [module for name, module in model.named_modules() if name.split(".")[-1] in names]


@piece(paper="arXiv:2310.06452")
def top_layers(model: Module, *, count: Count = 4) -> Module:
    """The last `count` blocks and everything after them (final norm, heads) are trained; embeddings are
    frozen, also if tied to the output layer, and so are a vision tower and its projector. The cited paper
    trains the last 20 % of the layers.
    """
    layers = blocks(model)
    if not 1 <= count <= len(layers):
        raise RecipeError(
            f"adapter top_layers: count is {count} but the model has {len(layers)} layers; use 1 to "
            f"{len(layers)}"
        )
    model.requires_grad_(False)
    for layer in list(layers)[-count:]:
        layer.requires_grad_(True)
    before = {id(p) for p in layers.parameters()} | {
        id(p) for m in model.modules() if _embeds(m) for p in m.parameters()
    }
    before |= {id(p) for part in vision_parts(model) for p in part.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in before:
            parameter.requires_grad_(True)
    return model


def _embeds(module: Module) -> bool:
    from torch.nn import Embedding

    return isinstance(module, Embedding)
