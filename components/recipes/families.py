"""Model families in recipes: the spec of a model directory or address, without importing torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ratchet.components.errors import RecipeError, SourceError
from ratchet.components.piece import catalogue, describe, resolve

FILE = "family.json"
MODELS = frozenset({"llava"})
"""`model_type`s of vision-language models: every image has as many tokens, `image_seq_length`, positions
count tokens, and attention is causal.
"""


def family_of(path: Path) -> dict[str, Any] | None:
    """The spec of a model directory's family; None for a language model. `SourceError` for a damaged file."""
    file = Path(path) / FILE
    if not file.is_file():
        return None
    try:
        return resolve("family", json.loads(file.read_text()), where=str(file))
    except (json.JSONDecodeError, RecipeError, TypeError) as error:
        raise SourceError(f"{file}: expected the name of a model family with its options: {error}") from error


def new_family(source: str, where: str = "") -> tuple[dict[str, Any], int] | None:
    """The family's spec and the seed of an address such as
    `generate:gaussian?observation=3&action=1&seed=0`; None for other addresses. `RecipeError` for unknown
    options.
    """
    address = urlsplit(source)
    if address.scheme != "generate" or address.path not in catalogue("family"):
        return None
    options = dict(parse_qsl(address.query))
    seed, spec = int(options.pop("seed", "0")), {"name": address.path}
    known = describe("family", address.path).options
    for name, text in options.items():
        spec[name] = text if name in known and "Literal" in known[name].annotation else _number(text)
    return resolve("family", spec, where=where or source), seed


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
