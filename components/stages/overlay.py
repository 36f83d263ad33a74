"""A mapping of models over another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Overlay(Mapping[str, Any]):
    """Mapping with some names overridden; other names are looked up (and loaded) only on access."""

    def __init__(self, below: Mapping[str, Any], above: Mapping[str, Any]) -> None:
        self._below, self._above = below, above

    def __getitem__(self, name: str) -> Any:
        return self._above[name] if name in self._above else self._below[name]

    def __iter__(self):
        return iter({*self._below, *self._above})

    def __len__(self) -> int:
        return len({*self._below, *self._above})
