"""A run that was started by hand ends from its Prefect page too. (One of a worker is ended by its worker.)"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

LOOK = 2.0
"""Seconds between two looks at what the page says."""
SIGNAL = signal.SIGUSR1
"""Not that of Ctrl-C, to which a run in the background of a script is deaf."""


@contextlib.contextmanager
def ended_from_its_page() -> Iterator[None]:
    """Inside a flow, in the main thread: once somebody cancels it on its page, it ends as by Ctrl-C. Then raises Prefect's `Abort`, and the
    run is Cancelled and not Crashed."""
    from prefect.client.orchestration import get_client
    from prefect.context import FlowRunContext
    from prefect.exceptions import Abort
    from prefect.states import Cancelled

    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or run.deployment_id is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked, over, turn = threading.Event(), threading.Event(), threading.Lock()

    def interrupt(*_: Any) -> None:
        asked.set()
        raise KeyboardInterrupt

    before = signal.signal(SIGNAL, interrupt)
    threading.Thread(target=_watch, args=(run.id, over, turn), daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        if not asked.is_set():
            raise
        cancelled: Any = Cancelled(message="Everything finished is kept; the same command continues from here.")
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run.id, cancelled, force=True)
        abort = Abort("cancelled from its page")
        abort.state = cancelled  # type: ignore[attr-defined]  the engine looks for it
        raise abort from None
    finally:
        with turn:  # or a signal that is on its way would meet no handler, and end the process
            over.set()
        signal.signal(SIGNAL, before)


def _watch(run: UUID, over: threading.Event, turn: threading.Lock) -> None:
    from prefect.client.orchestration import get_client

    while not over.wait(LOOK):
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # away: the run goes on, and is looked at again
            state = client.read_flow_run(run).state
            if state is not None and (state.is_cancelling() or state.is_cancelled()):
                with turn:
                    if not over.is_set():
                        os.kill(os.getpid(), SIGNAL)
                return
