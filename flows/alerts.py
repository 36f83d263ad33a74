"""Webhook alerts: `alerts` of `flows/deployments.yaml` as Prefect automations that POST to a webhook.

    alerts:
      people: {url_from: RATCHET_ALERT_URL, on: [failed, late, drift, health]}

`url_from` is the environment variable with the address, read by `ratchet deploy`. The payload is JSON with
one key, `text`, as Slack, Mattermost and Teams workflows expect.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from prefect.blocks.webhook import Webhook
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from ratchet.components.errors import RecipeError
from ratchet.flows.deployments import Alert
from ratchet.tasks.data.drift import EVENT
from ratchet.tasks.tracking.alerts import HEALTH, LABELS

EVENTS: Mapping[str, Sequence[str]] = {
    "failed": ("prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut"),
    "late": ("prefect.flow-run.Late",),
    "cancelled": ("prefect.flow-run.Cancelled",),
    "drift": (EVENT,),
    "health": (HEALTH,),
    "labels": (LABELS,),
}
# One line: the event's own message if it has one, otherwise run name, event and state message.
TEXT = (
    '{"text": {{ (event.payload.get("message") or ("run " ~ event.resource.name ~ ": " ~ event.event ~ " " '
    '~ (event.payload.get("validated_state", {}).get("message") or "")))[:1500] | trim | tojson }}}'
)


def alert_change(
    name: str, alert: Alert, client: Any
) -> tuple[dict[str, Any] | None, dict[str, Any], Callable[[], object]]:
    """This alert on the server (None: not there), in the file, and a function that brings it to the server.
    If the address is not in the environment, the stored one is kept; `RecipeError` if there is none.
    """
    slug, address = f"ratchet-{name}", os.environ.get(alert.url_from, "")
    events = {event for when in alert.on for event in EVENTS[when]}
    block = or_none(client.read_block_document_by_name, slug, "webhook", True)  # True: with its secret
    if block is None and not address:
        raise RecipeError(
            f"alerts.{name}: {alert.url_from} is not set in the environment, and the server has no stored "
            "address yet"
        )
    known = next(iter(client.read_automations_by_name(slug)), None)

    def described(events: Iterable[str], text: str, url: str) -> dict[str, Any]:
        """With a digest of the address, which shows that it changed without revealing it."""
        seen = f"sha256 {hashlib.sha256(str(url).encode()).hexdigest()[:12]}" if address else "as it is"
        return {"on": sorted(events), "text": text, "address": seen}

    def carry_out() -> None:
        headers: Any = {"Content-Type": "application/json"}
        if address:
            Webhook(method="POST", url=address, headers=headers).save(slug, overwrite=True)  # type: ignore[arg-type]
        about: Any = {"prefect.resource.id": ["prefect.flow-run.*", "ratchet.run.*"]}
        stored = client.read_block_document_by_name(slug, "webhook")
        automation = AutomationCore(
            name=slug,
            description="from flows/deployments.yaml",
            trigger=EventTrigger(
                expect=events,
                match=about,
                for_each={"prefect.resource.id"},
                posture=Posture.Reactive,
                threshold=1,
                within=timedelta(0),
            ),
            actions=[CallWebhook(block_document_id=stored.id, payload=TEXT)],
        )
        client.update_automation(known.id, automation) if known else client.create_automation(automation)

    before = None
    if known is not None and block is not None:
        before = described(known.trigger.expect, known.actions[0].payload, block.data.get("url", ""))
    return before, described(events, TEXT, address), carry_out


def or_none(read: Callable[..., Any], *named: Any) -> Any:
    """What a method of the client reads; None if the server does not have it."""
    try:
        return read(*named)
    except ObjectNotFound:
        return None
