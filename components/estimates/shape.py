"""Dimensions and parameter counts of a Llama-like decoder from its config.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ratchet.components.errors import RecipeError

NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")


@dataclass(frozen=True)
class Shape:
    """Model dimensions. `counted`: number of parameters in the safetensors files, if present."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool
    counted: int | None = None

    @property
    def query(self) -> int:
        return self.heads * self.head_size

    @property
    def key_value(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def layer(self) -> int:
        """Parameters of one layer: four attention matrices, three of the gated MLP, two norms."""
        attention = self.hidden * (2 * self.query + 2 * self.key_value)
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def parameters(self) -> int:
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.counted or self.layers * self.layer + embeddings + self.hidden

    def first(self, layers: int | None) -> Shape:
        """The first `layers` layers with a scalar head and no output matrix, as reward models use them."""
        kept = self.layers if layers is None else min(layers, self.layers)
        return replace(self, layers=kept, tied=True, counted=None)


def read_shape(config: Mapping[str, Any], where: str) -> Shape:
    """Dimensions from the keys of a config.json. `RecipeError` unless it is Llama-like."""
    config = {**config, **(config.get("text_config") or {})}
    missing = [key for key in NEEDED if not isinstance(config.get(key), int)]
    if missing:
        raise RecipeError(
            f"{where}: config.json has no {', '.join(missing)}: only Llama-like decoders can be "
            "estimated, with the keys "
            f"{', '.join(NEEDED)}"
        )
    heads = config["num_attention_heads"]
    return Shape(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def tiny_shape(address: str) -> Shape:
    """Dimensions of the tiny model of an address such as generate:tiny?layers=2 (components/models/tiny.py),
    of whose vocabulary only the upper bound is known before it is made.
    """
    options = dict(parse_qsl(address.partition("?")[2]))
    hidden, layers = int(options.get("hidden", 160)), int(options.get("layers", 4))
    return Shape(
        layers, hidden, hidden // 32, hidden // 32, 32, intermediate=3 * hidden, vocabulary=512, tied=True
    )


def shape_of(folder: Path) -> Shape:
    """Dimensions of a model directory. Parameters are counted from safetensors headers; no weight is read."""
    shape = read_shape(json.loads((folder / "config.json").read_text()), str(folder))
    counted = sum(count(file) for file in folder.glob("*.safetensors"))
    return replace(shape, counted=counted or None)


def count(file: Path) -> int:
    """Number of elements of all tensors in a safetensors file."""
    from safetensors import safe_open

    with safe_open(file, "numpy") as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
