"""A run that waits for people: an alert, and a note on its page."""

from __future__ import annotations

import logging
from pathlib import Path

from ratchet.components.errors import redacted
from ratchet.components.recipes.plan import Stage
from ratchet.components.stages.ask import QUEUE
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking.alerts import LABELS, emit_alert
from ratchet.tasks.watcher import Watcher

log = logging.getLogger("ratchet.labels")


def queue_of(home: Path, stage: str, key: str) -> Path:
    """Folder of the queue of a stage `ask` while it waits."""
    return home / "store" / ".work" / f"{stage}-{key[:16]}" / "progress" / QUEUE


class Asking(Watcher):
    """Watcher of a run: when it begins to wait for people, it logs, alerts and writes to the run's page how
    they give labels.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def started(self, stage: Stage, metrics: Path) -> None:
        if stage.does == "ask" and not stage.options["people"]["simulated"]:
            announce(self.pipeline, stage)


def announce(pipeline: Pipeline, stage: Stage) -> None:
    """Log, alert and write to the run's page how people give the labels that a stage waits for."""
    labels, run = stage.options["people"]["labels"], pipeline.run
    text = f"{run.name}: {stage.title}: waits for {labels} labels; `ratchet label {run.path}` serves the page"
    log.warning("%s", text)
    emit_alert(LABELS, run.name, text, {"stage": stage.name, "labels": labels})
    _note(text)


def _note(text: str) -> None:
    from prefect.artifacts import create_markdown_artifact

    try:
        create_markdown_artifact(markdown=text, key="labels", description="People are asked for labels.")
    except Exception as error:
        log.warning("%s", redacted(f"the Prefect page was not updated: {type(error).__name__}: {error}"))
