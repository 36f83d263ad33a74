"""JSON schema of recipe files, for completion and hints in editors. `ratchet recipes check` is stricter: it
knows the base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from ratchet.components.piece import Description, catalogue
from ratchet.components.recipes.defaults import MEASURE_KEYS, OBJECTIVE_KEYS
from ratchet.components.recipes.schema import Recipe

SLOTS = {
    "annotate": "annotate",
    "prepare": "annotate",
    "metrics": "annotate",
    "gold": "annotate",
    "select": "select",
    "sft": "select",
    "reward": "select",
    "rollout": "rollout",
    "prompts": "prompts",
    "reference": "reference",
    "adapter": "adapter",
    "updates": "objective",
    "measures": "measure",
    "reports": "report",
    "transforms": "transform",
    "parser": "parser",
}
"""Key of a section -> slot of the pieces under it."""
NULL = {"type": "null"}


def recipe_schema() -> dict[str, Any]:
    """The schema. Nothing is required, null is allowed everywhere and a list may be a mapping of numbers: a
    recipe is merged over its base.
    """
    whole = _loose(TypeAdapter(Recipe).json_schema(), "")
    whole["$defs"] |= {f"piece {slot}": _piece(slot) for slot in sorted(set(SLOTS.values()))}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole, "title": "Ratchet recipe"}


def _loose(node: Any, key: str) -> Any:
    """The schema of the value of `key`, and of all below it."""
    if not isinstance(node, dict):
        return node
    if node.get("additionalProperties") is True and key in SLOTS:
        return {"$ref": f"#/$defs/piece {SLOTS[key]}"}
    made = {
        name: value
        for name, value in node.items()
        if name not in ("required", "title", "minItems", "maxItems")
    }
    for name in ("properties", "$defs"):
        if name in node:
            made[name] = {
                one: _loose(value, one)
                if name == "$defs"
                else {"anyOf": [_loose(value, one), NULL], **_of("default", value)}
                for one, value in node[name].items()
            }
    if "items" in node:
        item = _loose(node["items"], key)
        return {
            "anyOf": [
                {**made, "items": item},
                {
                    "type": "object",
                    "patternProperties": {"^[0-9]+$": {"anyOf": [item, NULL]}},
                    "additionalProperties": False,
                },
            ]
        }
    if isinstance(node.get("additionalProperties"), dict):
        made["additionalProperties"] = {"anyOf": [_loose(node["additionalProperties"], key), NULL]}
    made.pop("discriminator", None)
    if members := made.pop("oneOf", node.get("anyOf")):
        made["anyOf"] = [_loose(one, key) for one in members]
    return made


def _piece(slot: str) -> dict[str, Any]:
    """A name, or a mapping with a name and that piece's options."""
    pieces = catalogue(slot)
    options = [
        {
            "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
            "then": {"properties": _options(name, one), "additionalProperties": False},
        }
        for name, one in pieces.items()
    ]
    return {
        "anyOf": [
            {"enum": list(pieces)},
            {"type": "object", "properties": {"name": {"enum": list(pieces)}}, "allOf": options},
        ]
    }


def _options(name: str, piece: Description) -> dict[str, Any]:
    keys = {"objective": OBJECTIVE_KEYS, "measure": MEASURE_KEYS, "report": MEASURE_KEYS}
    reserved = keys.get(piece.slot, ())
    found: dict[str, Any] = {
        "name": {"const": name, "description": piece.doc.partition("\n\n")[0]},
        **{one: {} for one in reserved},
    }
    for key, option in piece.options.items():
        kinds = [
            TypeAdapter(option.kind).json_schema(),
            NULL,
            *([{"type": "object"}] if piece.slot == "objective" else []),
        ]  # a number's schedule
        found[key] = {"anyOf": kinds, **({} if option.required else {"default": option.default})}
    return found


def _of(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value[name]} if name in value else {}
