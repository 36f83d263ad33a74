"""Telling people: an event to the Prefect server, whose automations call their webhook (`alerts` in flows/deployments.yaml).

The webhook's address is a secret: it goes from the environment of whoever deploys into a block of the server, encrypted there, and is
neither in a file of ours nor in a log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("ratchet.alerts")


def tell(event: str, run: str, message: str, payload: Mapping[str, Any]) -> None:
    """Emit `event` about a run; without a server, or with one that is away, nothing happens and nothing fails."""
    try:
        from prefect.events import emit_event

        emit_event(event, resource={"prefect.resource.id": f"ratchet.run.{run}", "prefect.resource.name": run},
                   payload={**payload, "message": message})
    except Exception as error:
        log.warning("nobody was told of %s: %s", event, type(error).__name__)
