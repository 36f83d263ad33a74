"""A run that waits for people: an alert, and a note on its page. Prefect suspends a deployed run meanwhile,
so that it occupies no worker; the labelling page resumes it when it has its labels, the Prefect server at the
deadline, by an automation, so that neither a worker nor the page has to run meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from filelock import FileLock

from ratchet.components.errors import ServiceError, redacted
from ratchet.components.labels.labels import read_labels
from ratchet.components.labels.queue_files import CLOSED, WRITING
from ratchet.components.recipes.plan import Stage
from ratchet.components.stages.ask import OPENED, QUEUE, Waiting, open_queue
from ratchet.components.stages.job import Job
from ratchet.components.storage.store import write_atomic
from ratchet.tasks.labels.run_page import page_of_this_run
from ratchet.tasks.pipeline import Pipeline, Watcher
from ratchet.tasks.tracking.alerts import LABELS, emit_alert

log = logging.getLogger("ratchet.labels")
FLOW_RUN = "flow_run.json"
"""File of a queue whose flow run is suspended: its id, the wanted labels, and the deadline."""

SHORTEST = 10.0
"""Seconds; a Prefect server waits no shorter for an event that does not come."""
ENDS = ("Resuming", "Running", "Cancelling", "Cancelled", "Failed", "Completed")
"""States after which a flow run need not be resumed any more."""


def queue_of(home: Path, stage: str, key: str) -> Path:
    """Folder of the queue of a stage `ask` while it waits."""
    return home / "store" / ".work" / f"{stage}-{key[:16]}" / "progress" / QUEUE


class Asking(Watcher):
    """Watcher that announces, when a run begins to wait for people, how they give labels."""

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
    if page := page_of_this_run(queue_of(pipeline.store.home, stage.name, stage.key)):
        page.show(text)


def deployed_flow_run() -> UUID | None:
    """Id of the current flow run if it belongs to a deployment, which Prefect can start again."""
    from prefect.runtime import deployment, flow_run

    return UUID(flow_run.id) if deployment.id and flow_run.id else None


def unanswered_queue(pipeline: Pipeline, stage: Stage) -> Waiting | None:
    """The filled queue of a stage `ask`; None if the stage need not wait: people are simulated, it was made
    before, it has its labels, or its deadline has passed.
    """
    if stage.options["people"]["simulated"] or pipeline.take(stage) is not None:
        return None
    inputs = {role: pipeline.artifact(name) for role, name in stage.inputs.items()}
    with pipeline.store.working(stage.name, stage.key) as work:
        queue = open_queue(Job(stage.options, inputs, work))
    if queue.is_over(time.time()):
        _forget_flow_run(queue.folder)
        return None
    announce(pipeline, stage)
    return queue


def suspend(queue: Waiting, flow_run: UUID) -> None:
    """Suspend the current flow run; raises Prefect's `Pause`. The Prefect server resumes it at the deadline.
    A run that is resumed too early suspends again.
    """
    from prefect.flow_runs import suspend_flow_run

    end = None if math.isinf(queue.end) else queue.end
    _forget_flow_run(queue.folder)  # of a run that was cancelled while it was suspended
    set_deadline(flow_run, end)
    record = {"flow_run": str(flow_run), "wanted": queue.wanted, "end": end}
    write_atomic(queue.folder / FLOW_RUN, json.dumps(record) + "\n")
    suspend_flow_run(key=str(uuid4()))


def reopen_without_labels(folder: Path) -> bool:
    """Take labels again if the queue was closed with none; whether it was. The deadline counts anew."""
    with FileLock(folder / WRITING, thread_local=False):
        if not (folder / CLOSED).exists() or read_labels(folder):
            return False
        (folder / OPENED).unlink(missing_ok=True)
        (folder / CLOSED).unlink()
        return True


def resume_if_over(folder: Path, now: float) -> bool:
    """Resume the flow run that waits for this queue if it has its labels, was closed or has reached its
    deadline; whether it was resumed. `ServiceError` if the Prefect server does not do it.
    """
    file = folder / FLOW_RUN
    if not file.exists():
        return False
    record: dict[str, Any] = json.loads(file.read_text())
    end = math.inf if record["end"] is None else record["end"]
    if not Waiting(folder, [], record["wanted"], end).is_over(now):
        return False
    from prefect.exceptions import NotPausedError
    from prefect.flow_runs import resume_flow_run

    try:
        with contextlib.suppress(NotPausedError):  # resumed at its deadline by the server, or cancelled
            resume_flow_run(UUID(record["flow_run"]))
    except Exception as error:
        raise ServiceError(
            "the run has its labels, but the Prefect server did not resume its flow run "
            f"{record['flow_run']} ({type(error).__name__}: {error}); PREFECT_API_URL names the server of "
            "the run; or resume it on its page"
        ) from error
    _forget_flow_run(folder)
    return True


def _forget_flow_run(folder: Path) -> None:
    """Delete the record of the suspended flow run, and its deadline at the Prefect server."""
    with contextlib.suppress(FileNotFoundError):  # the page and the run both do so
        record = json.loads((folder / FLOW_RUN).read_text())
        if record["end"] is not None:
            set_deadline(UUID(record["flow_run"]), None)
        (folder / FLOW_RUN).unlink()


def set_deadline(flow_run: UUID, end: float | None) -> None:
    """Let the Prefect server resume a flow run at `end` (seconds since 1970; None: never), in place of an
    earlier deadline of it; call it before the flow run is suspended. Warns if the server does not take it.
    """
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            client.delete_resource_owned_automations(_resource(flow_run))
            if end is not None:
                client.create_automation(automation(flow_run, end - time.time()))
    except Exception as error:
        effect = "is noticed only while `ratchet label` serves the page" if end else "was not deleted"
        text = redacted(f"{type(error).__name__}: {error}")
        log.warning("the deadline of flow run %s %s: %s", flow_run, effect, text)


def automation(flow_run: UUID, seconds: float) -> Any:
    """The automation that resumes a flow run if nothing else did so `seconds` after it was suspended."""
    from prefect.events.actions import ResumeFlowRun
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    trigger = EventTrigger(
        after={"prefect.flow-run.Suspended"},
        expect={f"prefect.flow-run.{state}" for state in ENDS},
        match={"prefect.resource.id": _resource(flow_run)},  # type: ignore[arg-type]
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=max(SHORTEST, seconds + 1)),
    )
    return AutomationCore(
        name=f"ratchet-labels-{flow_run}",
        description="Resumes a run that waits for labels at its deadline; the run deletes it.",
        trigger=trigger,
        actions=[ResumeFlowRun()],
        owner_resource=_resource(flow_run),
    )


def _resource(flow_run: UUID) -> str:
    return f"prefect.flow-run.{flow_run}"
