"""Telling people: an event to the Prefect server, whose automations call their webhook (`alerts` in flows/deployments.yaml).

The webhook's address is a secret: it goes from the environment of whoever deploys into a block of the server, encrypted there, and is
neither in a file of ours nor in a log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.components.errors import HealthError
from ratchet.components.recipes.plan import Stage
from ratchet.components.types import Artifact
from ratchet.tasks.pipeline import Pipeline

log = logging.getLogger("ratchet.alerts")
HEALTH = "ratchet.health"


def tell(event: str, run: str, message: str, payload: Mapping[str, Any]) -> None:
    """Emit `event` about a run; without a server, or with one that is away, nothing happens and nothing fails."""
    try:
        from prefect.events import emit_event

        emit_event(event, resource={"prefect.resource.id": f"ratchet.run.{run}", "prefect.resource.name": run},
                   payload={**payload, "message": message})
    except Exception as error:
        log.warning("nobody was told of %s: %s", event, type(error).__name__)


class Alarm:
    """Watches a run (`tasks/pipeline.py`) for what says that its model goes astray: a health rule that warns, holds or stops, and gates
    that failed, such as the reward model liking the policy more than the gold judge does. What was taken from the store was told of by
    the run that made it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def started(self, stage: Stage, metrics: Path) -> None:
        pass

    def progressed(self, stage: Stage, line: Mapping[str, Any]) -> None:
        pass

    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        if reused:
            return
        if tripped := artifact.meta.get("verdicts"):
            self._tell(stage, f"health rules tripped ({artifact.meta['verdict']})", tripped)
        if stage.does == "evaluate" and (failed := _failed_gates(artifact.path / "results.json")):
            self._tell(stage, "gates failed", failed)

    def failed(self, stage: Stage, error: BaseException) -> None:
        if isinstance(error, HealthError) or f"{HealthError.__name__}: " in str(error):  # the latter from another worker, in its words
            self._tell(stage, "the run was stopped", [str(error)])

    def _tell(self, stage: Stage, what: str, found: Sequence[str]) -> None:
        run, recipe = self.pipeline.run.name, self.pipeline.recipe.name
        tell(HEALTH, run, f"{run}: {stage.title}: {what}: {'; '.join(found)}", {"recipe": recipe, "stage": stage.name, "found": list(found)})


def _failed_gates(results: Path) -> list[str]:
    verdict = json.loads(results.read_text())["verdict"]
    return [reason for passed, reason in zip(verdict["gates"].values(), verdict["reasons"], strict=False) if not passed]  # no gate, one reason
