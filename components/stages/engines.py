"""Engines that are loaded at first use, one model at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.stages.shards import sharded_engine

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine


class SingleModelEngine:
    """An engine with the weights of one model directory at a time; another directory replaces them."""

    def __init__(self, profile: Mapping[str, Any]) -> None:
        self._profile, self._engine, self._path = profile, None, Path()

    def loaded(self, path: Path) -> Engine:
        """The engine, with the weights of this directory. Every call returns the same object, so earlier
        references have the new weights too.
        """
        if self._engine is None:
            self._engine = sharded_engine(self._profile, path)
        elif path != self._path:
            self._engine.load(path)
        self._path = path
        return self._engine

    def release(self) -> None:
        """Free the weights."""
        self._engine = None


class LazyMapping(Mapping[str, Any]):
    """Mapping of names to values that are made at each access; asking whether a name exists makes none."""

    def __init__(self, **makers: Callable[[], Any]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> Any:
        return self._makers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)
