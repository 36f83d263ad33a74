"""Recipes merged into their bases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.errors import RecipeError

OF_BYTES = (
    "sha256",
    "base",
    "base_sha256",
    "format",
    "shape",
    "remote_code",
)  # keys that apply to the base's source only


def merge(base: Mapping[str, Any], over: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """`over` merged into `base`: mappings merge, everything else replaces. A piece with another name replaces
    the whole piece; another source also removes keys that apply to the base's source (`OF_BYTES`). A mapping
    of numbers over a list changes the items at these indices (from 0); null removes an item.
    """
    if isinstance(base.get("source"), str) and over.get("source", base["source"]) != base["source"]:
        base = {key: value for key, value in base.items() if key not in OF_BYTES}
    if (
        "name" in base
        and "name" in over
        and "fit" not in base
        and "schema" not in base
        and base["name"] != over["name"]
    ):
        return dict(over)
    merged = dict(base)
    if where == "data":  # a single source replaces several, and vice versa
        replaced = (
            ("source", "sha256", "config", "parser", "columns")
            if over.get("sources")
            else ("sources",)
            if over.get("source")
            else ()
        )
        merged = {key: value for key, value in merged.items() if key not in replaced}
    for key, value in over.items():
        merged[key] = _on(merged.get(key), value, f"{where}.{key}" if where else key)
    return merged


def _on(below: Any, value: Any, where: str) -> Any:
    if isinstance(below, Mapping) and isinstance(value, Mapping):
        return merge(below, value, where)
    if not (
        isinstance(below, list)
        and isinstance(value, Mapping)
        and value
        and all(str(key).isdigit() for key in value)
    ):
        return value
    items = list(below)
    for key, item in value.items():
        if int(key) >= len(items):
            raise RecipeError(
                f"{where}.{key}: the list has {len(items)} items, counted from 0; write the whole list to "
                "add one"
            )
        one = items[int(key)]
        items[int(key)] = _on(
            {"name": one} if isinstance(one, str) and isinstance(item, Mapping) else one,
            item,
            f"{where}.{key}",
        )
    return [item for item in items if item is not None]
