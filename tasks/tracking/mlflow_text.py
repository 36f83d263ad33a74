"""Names, parameters and tags within MLflow's limits; parsing of metrics files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings and lists of mappings -> dotted names (`stages.0.lr`); other values as JSON."""
    flat: dict[str, str] = {}
    for name, value in tree.items():
        path = allowed(f"{prefix}{name}")
        if isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value):
            value = {str(i): v for i, v in enumerate(value)}
        if isinstance(value, Mapping) and value:
            flat |= flatten({str(k): v for k, v in value.items()}, f"{path}.")
        else:
            flat[path] = text(value)
    return flat


def text(value: Any) -> str:
    """Strings unchanged, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def cut(text: str, limit: int) -> str:
    """Truncate to `limit` characters, with a note at the end."""
    note = f" ... [cut, {len(text)} characters]"
    return text if len(text) <= limit else text[: limit - len(note)] + note


def allowed(name: str) -> str:
    """Name with only MLflow's allowed characters (letters, digits, `_-. :/`), at most 250."""
    return re.sub(r"[^\w\-. :/]", "_", str(name))[:250]


def lines(data: bytes) -> list[dict[str, Any]]:
    """Parse JSON lines, skipping incomplete ones."""
    found = []
    for line in data.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [one for one in found if isinstance(one, dict)]
