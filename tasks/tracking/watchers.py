"""What watches a pipeline: the upload to MLflow, the Prefect page and the alarm. Each may fail without harm."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from ratchet.components.errors import redacted
from ratchet.tasks.machine.system import sampled, samples_of
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking.alerts import Alarm
from ratchet.tasks.tracking.live_upload import Tracking
from ratchet.tasks.tracking.prefect_page import PrefectPage
from ratchet.tasks.tracking.spending import spending

log = logging.getLogger("ratchet.watchers")


@contextlib.contextmanager
def watched(pipeline: Pipeline, display: Any = None) -> Iterator[Tracking]:
    """Attach the watchers, begin the run, and end it with what became of it."""
    tracking = Tracking(pipeline.run.path, pipeline.store.home)
    page = PrefectPage(tracking, pipeline.recipe.paper)
    pipeline.watchers[:] = [w for w in (display, page, Alarm(pipeline)) if w is not None]
    pipeline.begin()
    tracking.start()
    _told(page.begin, pipeline.run.name)
    try:
        with sampled(samples_of(pipeline.run.path)):
            yield tracking
    except BaseException as error:
        state = "failed" if isinstance(error, Exception) else "stopped"
        pipeline.end(state, error=f"{type(error).__name__}: {error}", failed_stage=pipeline.failing)
        if state == "failed":
            _told(page.summary, pipeline)
        tracking.close()
        raise
    pipeline.end("finished", spent=spending(pipeline))
    _told(page.summary, pipeline)
    if not tracking.close() and display is not None:
        display.console.print(f"MLflow is behind, nothing is lost: {tracking.problem}. `ratchet sync` sends the rest.")


def _told(method: Callable[..., None], *args: Any) -> None:
    """Call a method of a page, whose server may be away: the work goes on."""
    try:
        method(*args)
    except Exception as error:
        log.warning("%s", redacted(f"the Prefect page was not told: {type(error).__name__}: {error}"))
