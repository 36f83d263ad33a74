"""Who is told what: `alerts` of `flows/deployments.yaml` as automations of the Prefect server that POST to a webhook.

    alerts:
      people: {url_from: RATCHET_ALERT_URL, on: [failed, late, drift, health]}

`url_from` names the environment variable that holds the address when `ratchet deploy` is called. What is sent is JSON with one key,
`text`, which Slack, Mattermost and Teams' workflows understand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.conform import record
from ratchet.tasks.data.drift import EVENT
from ratchet.tasks.tracking.alerts import HEALTH

When = Literal["failed", "late", "drift", "health", "cancelled"]
EVENTS: Mapping[str, Sequence[str]] = {
    "failed": ("prefect.flow-run.Failed", "prefect.flow-run.Crashed", "prefect.flow-run.TimedOut"),
    "late": ("prefect.flow-run.Late",),
    "cancelled": ("prefect.flow-run.Cancelled",),
    "drift": (EVENT,),
    "health": (HEALTH,),
}
# One line for people: our own message where the event has one, else the run, what became of it, and where to look.
TEXT = ('{"text": {{ (event.payload.get("message") or ("run " ~ event.resource.name ~ ": " ~ event.event ~ " " '
        '~ (event.payload.get("validated_state", {}).get("message") or "")))[:1500] | trim | tojson }}}')


@record
class Alert:
    """A webhook and what it is called for."""

    url_from: str
    on: Sequence[When] = ("failed", "drift", "health")


def check(name: str, alert: Alert) -> None:
    """Raises `RecipeError` for an alert that could never be sent, or an address written into the file."""
    if "://" in alert.url_from:
        raise RecipeError(f"alerts.{name}.url_from: the address of a webhook is a secret; name the environment variable that holds it")
    if not alert.on:
        raise RecipeError(f"alerts.{name}.on: nothing to tell of; expected some of {', '.join(EVENTS)}")


def wanted(name: str, alert: Alert, block: Any) -> Any:
    """The automation as the file has it."""
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    about: Any = {"prefect.resource.id": ["prefect.flow-run.*", "ratchet.run.*"]}
    trigger = EventTrigger(expect={event for when in alert.on for event in EVENTS[when]}, match=about,
                           for_each={"prefect.resource.id"}, posture=Posture.Reactive, threshold=1, within=timedelta(0))
    return AutomationCore(name=f"ratchet-{name}", description="from flows/deployments.yaml", trigger=trigger,
                          actions=[CallWebhook(block_document_id=block, payload=TEXT)])


def alert_change(name: str, alert: Alert, client: Any, change: Callable[..., Any]) -> Any:
    """What it takes to have this alert on the server. An address that is not in the environment leaves the server's as it is, and is a
    `RecipeError` when it has none."""
    slug, address = f"ratchet-{name}", os.environ.get(alert.url_from, "")
    block = _block(client, slug)
    if block is None and not address:
        raise RecipeError(f"alerts.{name}: {alert.url_from} is not set in the environment, and the server has no address yet")
    known = next(iter(client.read_automations_by_name(slug)), None)
    spoken = {"on": sorted(e for when in alert.on for e in EVENTS[when]), "text": TEXT,
              "address": _seen(address) if address else "as it is"}
    before = None
    if known is not None and block is not None:
        stored = block.data.get("url", "")
        before = {"on": sorted(known.trigger.expect), "text": known.actions[0].payload,
                  "address": _seen(stored) if address else "as it is"}

    def carry_out() -> None:
        from prefect.blocks.webhook import Webhook

        if address:
            said = {"Content-Type": "application/json"}
            Webhook(method="POST", url=address, headers=said).save(slug, overwrite=True)  # type: ignore[arg-type]
        made = wanted(name, alert, _block(client, slug).id)
        client.update_automation(known.id, made) if known is not None else client.create_automation(made)

    return change("alert", name, before, spoken, carry_out)


def _block(client: Any, slug: str) -> Any:
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_block_document_by_name(slug, "webhook", include_secrets=True)
    except ObjectNotFound:
        return None


def _seen(address: str) -> str:
    """An address as it may be printed: by its digest, so that a change shows and the address does not."""
    import hashlib

    return "sha256 " + hashlib.sha256(str(address).encode()).hexdigest()[:12]
