"""Adapter `half`: half of the parameter matrices are trained."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ratchet.components.errors import RecipeError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Natural

if TYPE_CHECKING:
    from torch.nn import Module, Parameter


def drawn(names: list[str], rng: random.Random, larger: bool) -> list[str]:
    """Half of `names`; of an odd number the larger half if `larger`."""
    return rng.sample(names, len(names) // 2 + (larger and len(names) % 2))


@piece(paper="arXiv:2404.18466")
def half(model: Module, *, seed: Natural = 0) -> Module:
    """Half fine-tuning, theta + M (theta' - theta) with a mask M of 0 and 1 for whole matrices, category
    level: in every block half of the attention matrices, half of the feed-forward matrices (of three, two in
    one half of the blocks and one in the other) and half of the norms are trained; everything outside the
    blocks (embeddings, final norm, heads) too. The paper draws anew in every stage: give each stage its own
    `seed`.
    """
    from ratchet.components.pieces.adapters.top_layers import blocks

    layers, rng = list(blocks(model)), random.Random(seed)
    model.requires_grad_(True)
    more = set(rng.sample(range(len(layers)), (len(layers) + 1) // 2))
    for number, layer in enumerate(layers):
        kinds: dict[str, list[str]] = {"attention": [], "feed-forward": [], "norm": []}
        parameters: dict[str, Parameter] = dict(layer.named_parameters())
        for name, parameter in parameters.items():
            if name.endswith(".bias"):
                continue  # a bias follows its matrix
            kinds[
                "norm" if parameter.dim() < 2 else "attention" if "attn" in name else "feed-forward"
            ].append(name)
        if not kinds["attention"] or not kinds["feed-forward"]:
            raise RecipeError(
                f"adapter half: cannot tell attention from feed-forward matrices of "
                f"{type(layer).__name__} by their names ({', '.join(parameters)}); use `full` or `top_layers`"
            )
        kept = {name for found in kinds.values() for name in drawn(sorted(found), rng, larger=number in more)}
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in kept or name.removesuffix("bias") + "weight" in kept)
    return model
