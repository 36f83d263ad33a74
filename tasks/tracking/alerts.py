"""Alerts: events to the Prefect server, whose automations call a webhook (`alerts` in
flows/deployments.yaml).

The webhook address is a secret: `ratchet deploy` copies it from the environment to an encrypted block of the
server; it is in no file and no log.
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
from ratchet.tasks.pipeline import Pipeline, Watcher

log = logging.getLogger("ratchet.alerts")
HEALTH = "ratchet.health"
LABELS = "ratchet.labels"  # a run waits for labels


def emit_alert(event: str, run: str, message: str, payload: Mapping[str, Any]) -> None:
    """Emit `event` about a run. Never fails; without a reachable server it is only logged."""
    try:
        from prefect.events import emit_event

        emit_event(
            event,
            resource={"prefect.resource.id": f"ratchet.run.{run}", "prefect.resource.name": run},
            payload={**payload, "message": message},
        )
    except Exception as error:
        log.warning("alert %s was not sent: %s", event, type(error).__name__)


class AlertWatcher(Watcher):
    """Watcher of a run that alerts on tripped health rules and failed gates. Reused stages
    were reported by the run that made them.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        if reused:
            return
        if tripped := artifact.meta.get("verdicts"):
            self._alert(stage, f"health rules tripped ({artifact.meta['verdict']})", tripped)
        if stage.does == "evaluate" and (failed := _failed_gates(artifact.path / "results.json")):
            self._alert(stage, "gates failed", failed)

    def failed(self, stage: Stage, error: BaseException) -> None:
        # from a remote worker as text
        if isinstance(error, HealthError) or f"{HealthError.__name__}: " in str(error):
            self._alert(stage, "the run was stopped", [str(error)])

    def _alert(self, stage: Stage, what: str, found: Sequence[str]) -> None:
        run, recipe = self.pipeline.run.name, self.pipeline.recipe.name
        message = f"{run}: {stage.title}: {what}: {'; '.join(found)}"
        emit_alert(HEALTH, run, message, {"recipe": recipe, "stage": stage.name, "found": list(found)})


def _failed_gates(results: Path) -> list[str]:
    verdict = json.loads(results.read_text())["verdict"]
    gates = zip(verdict["gates"].values(), verdict["reasons"], strict=False)  # without gates: one reason
    return [reason for passed, reason in gates if not passed]
