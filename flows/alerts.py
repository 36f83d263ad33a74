"""Webhook alerts: `alerts` of `flows/deployments.yaml` as Prefect automations that POST to a webhook.

    alerts:
      people: {url_from: RATCHET_ALERT_URL, on: [failed, late, drift, health]}

`url_from` is the environment variable with the address, read by `ratchet deploy`. The payload is JSON with
one key, `text`, as Slack, Mattermost and Teams workflows expect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.conform import record
from ratchet.tasks.data.drift import EVENT
from ratchet.tasks.tracking.alerts import HEALTH, LABELS

When = Literal["failed", "late", "drift", "health", "cancelled", "labels"]
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


@record
class Alert:
    """A webhook and the events that call it."""

    url_from: str
    on: Sequence[When] = ("failed", "drift", "health")


def check(name: str, alert: Alert) -> None:
    """`RecipeError` for an alert without events, or an address written into the file."""
    if "://" in alert.url_from:
        raise RecipeError(
            f"alerts.{name}.url_from: the address of a webhook is a secret; name the environment variable "
            "that holds it"
        )
    if not alert.on:
        raise RecipeError(f"alerts.{name}.on: no events; expected some of {', '.join(EVENTS)}")


def wanted(name: str, alert: Alert, block: Any) -> Any:
    """The Prefect automation described by the file."""
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    about: Any = {"prefect.resource.id": ["prefect.flow-run.*", "ratchet.run.*"]}
    trigger = EventTrigger(
        expect={event for when in alert.on for event in EVENTS[when]},
        match=about,
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
    return AutomationCore(
        name=f"ratchet-{name}",
        description="from flows/deployments.yaml",
        trigger=trigger,
        actions=[CallWebhook(block_document_id=block, payload=TEXT)],
    )


def alert_change(name: str, alert: Alert, client: Any, change: Callable[..., Any]) -> Any:
    """The change that brings this alert to the server. If the address is not in the environment, the stored
    one is kept; `RecipeError` if there is none.
    """
    slug, address = f"ratchet-{name}", os.environ.get(alert.url_from, "")
    block = _block(client, slug)
    if block is None and not address:
        raise RecipeError(
            f"alerts.{name}: {alert.url_from} is not set in the environment, and the server has no stored "
            "address yet"
        )
    known = next(iter(client.read_automations_by_name(slug)), None)

    def described(events: Iterable[str], text: str, url: str) -> dict[str, Any]:
        return {"on": sorted(events), "text": text, "address": _seen(url) if address else "as it is"}

    before = None
    if known is not None and block is not None:
        before = described(known.trigger.expect, known.actions[0].payload, block.data.get("url", ""))

    def carry_out() -> None:
        from prefect.blocks.webhook import Webhook

        if address:
            headers = {"Content-Type": "application/json"}
            Webhook(method="POST", url=address, headers=headers).save(slug, overwrite=True)  # type: ignore[arg-type]
        made = wanted(name, alert, _block(client, slug).id)
        client.update_automation(known.id, made) if known is not None else client.create_automation(made)

    after = described((event for when in alert.on for event in EVENTS[when]), TEXT, address)
    return change("alert", name, before, after, carry_out)


def _block(client: Any, slug: str) -> Any:
    return or_none(client.read_block_document_by_name, slug, "webhook", True)  # True: with its secret


def or_none(read: Callable[..., Any], *named: Any) -> Any:
    """What a method of the client reads; None if the server does not have it."""
    from prefect.exceptions import ObjectNotFound

    try:
        return read(*named)
    except ObjectNotFound:
        return None


def _seen(address: str) -> str:
    """Digest of an address for printing: shows that it changed without revealing it."""
    import hashlib

    return "sha256 " + hashlib.sha256(str(address).encode()).hexdigest()[:12]
