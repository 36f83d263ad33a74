"""Watchers of a run: MLflow upload, Prefect page, alerts. Their failures are harmless."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from prefect.exceptions import Pause

from ratchet.components.errors import redacted
from ratchet.tasks.labels.waiting import Asking
from ratchet.tasks.machine.system import sampled, samples_of
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking.alerts import AlertWatcher
from ratchet.tasks.tracking.prefect_page import PrefectPage
from ratchet.tasks.tracking.spending import spending
from ratchet.tasks.tracking.upload import BackgroundUploader

log = logging.getLogger("ratchet.watchers")


@contextlib.contextmanager
def watched(pipeline: Pipeline, display: Any = None) -> Iterator[BackgroundUploader]:
    """Attach the watchers, start the run, and record its result."""
    tracking = BackgroundUploader(pipeline.run.path, pipeline.store.home)
    page = PrefectPage(tracking)
    pipeline.watchers[:] = [
        w for w in (display, page, AlertWatcher(pipeline), Asking(pipeline)) if w is not None
    ]
    pipeline.begin()
    tracking.start()
    _notify_page(page.begin, pipeline.run.name)
    try:
        with sampled(samples_of(pipeline.run.path)):
            yield tracking
    except BaseException as error:
        state = "waiting" if isinstance(error, Pause) else "stopped"
        if isinstance(error, Exception):
            state = "failed"
        reason = None if state == "waiting" else f"{type(error).__name__}: {error}"
        pipeline.end(state, error=reason, failed_stage=pipeline.failing)
        if state == "failed":
            _notify_page(page.summary, pipeline)
        tracking.close()
        raise
    pipeline.end("finished", spent=spending(pipeline))
    _notify_page(page.summary, pipeline)
    if not tracking.close() and display is not None:
        display.console.print(
            f"MLflow is not up to date: {tracking.last_error}. "
            "Nothing is lost; `ratchet sync` uploads the rest."
        )


def _notify_page(method: Callable[..., None], *args: Any) -> None:
    """Call a method of the Prefect page; failures are only logged."""
    try:
        method(*args)
    except Exception as error:
        log.warning("%s", redacted(f"the Prefect page was not updated: {type(error).__name__}: {error}"))
