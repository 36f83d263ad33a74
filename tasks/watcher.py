"""Observers of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ratchet.components.recipes.plan import Stage
from ratchet.components.types import Artifact


class Watcher(Protocol):
    """Observer of a run: terminal, MLflow, Prefect UI. Its errors must not fail the run. A subclass inherits
    methods that do nothing.
    """

    def started(self, stage: Stage, metrics: Path) -> None:
        return

    def progressed(self, stage: Stage, line: Mapping[str, Any]) -> None:
        return

    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        return

    def failed(self, stage: Stage, error: BaseException) -> None:
        return
