"""The deadline of a suspended run, kept by the Prefect server: an automation that resumes the flow run then,
so that neither a worker nor the labelling page has to run meanwhile.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

from ratchet.components.errors import redacted

log = logging.getLogger("ratchet.labels")
SHORTEST = 10.0
"""Seconds; a Prefect server waits no shorter for an event that does not come."""
ENDS = ("Resuming", "Running", "Cancelling", "Cancelled", "Failed", "Completed")
"""States after which a flow run need not be resumed any more."""


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
