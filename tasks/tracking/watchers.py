"""Watchers of a run: MLflow upload, Prefect page, alerts. Their failures are harmless."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from ratchet.components.errors import redacted
from ratchet.tasks.labels.waiting import Asking
from ratchet.tasks.machine.system import sampled, samples_of
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking.alerts import AlertWatcher
from ratchet.tasks.tracking.ending import ending
from ratchet.tasks.tracking.prefect_page import PrefectPage
from ratchet.tasks.tracking.spending import spent_on
from ratchet.tasks.tracking.upload import BackgroundUploader

log = logging.getLogger("ratchet.watchers")


@contextlib.contextmanager
def watched(pipeline: Pipeline, display: Any = None) -> Iterator[BackgroundUploader]:
    """Attach the watchers, start the run, and record its result."""
    tracking = BackgroundUploader(pipeline.run.path, pipeline.store.home)
    page = PrefectPage(tracking)
    pipeline.watchers[:] = [*([display] if display else []), page, AlertWatcher(pipeline), Asking(pipeline)]
    pipeline.begin()
    tracking.start()
    _notify_page(page.begin, pipeline.run.name)
    state, found = "finished", dict[str, Any]()
    try:
        with sampled(samples_of(pipeline.run.path)):
            yield tracking
        metas = [s.artifact.meta for s in pipeline.status() if s.artifact is not None]  # reused ones too
        found = {"spent": spent_on(metas, pipeline.profile.hardware)}
    except BaseException as error:
        state, found = ending(error)
        found["failed_stage"] = pipeline.failing
        raise
    finally:
        pipeline.end(state, **found)
        if state in ("finished", "failed"):
            _notify_page(page.summary, pipeline)
        tracking.close()


def _notify_page(method: Callable[..., None], *args: Any) -> None:
    """Call a method of the Prefect page; failures are only logged."""
    try:
        method(*args)
    except Exception as error:
        log.warning("%s", redacted(f"the Prefect page was not updated: {type(error).__name__}: {error}"))
