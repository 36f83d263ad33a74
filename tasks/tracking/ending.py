"""How a run ended that raised, for its record."""

from __future__ import annotations

from typing import Any

from prefect.exceptions import Pause

from ratchet.components.errors import redacted

SIGNALLED = "interrupted"


def ending(error: BaseException) -> tuple[str, dict[str, Any]]:
    """State of a run that ended with an exception, and what is recorded as its error: nothing while it waits
    for people; for one that was stopped (Ctrl-C, a signal, its Prefect page) that it was.
    """
    if isinstance(error, Pause):
        return "waiting", {"error": None}
    if isinstance(error, Exception):
        return "failed", {"error": redacted(f"{type(error).__name__}: {error}")}
    return "stopped", {"error": SIGNALLED}
