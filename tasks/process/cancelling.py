"""Cancellation of a manually started flow run from the Prefect UI. (Runs of a worker are cancelled by the
worker.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

POLL = 2.0
"""Seconds between polls of the flow run's state."""
SIGNAL = signal.SIGUSR1
"""Not SIGINT, which a background job of a script ignores. A scheduler that sends this signal as a warning
(Slurm's `--signal=USR1`) cancels the run too.
"""


@contextlib.contextmanager
def cancel_on_prefect_request() -> Iterator[None]:
    """Inside a flow, in the main thread: when the run is cancelled in the Prefect UI, interrupt it as Ctrl-C
    does. Raises Prefect's `Abort`, so that the run ends as Cancelled and not as Crashed. A request that
    arrives when the flow's body has ended does nothing.
    """
    from prefect.client.orchestration import get_client
    from prefect.context import FlowRunContext
    from prefect.exceptions import Abort
    from prefect.states import Cancelled

    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if (
        run is None
        or run.deployment_id is not None
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    requested, finished, handler_lock = threading.Event(), threading.Event(), threading.Lock()
    ended = False

    def interrupt(*_: Any) -> None:
        if not ended:
            requested.set()
            raise KeyboardInterrupt

    previous_handler = signal.signal(SIGNAL, interrupt)
    threading.Thread(target=_watch, args=(run.id, finished, handler_lock), daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        ended = True
        if not requested.is_set():
            raise
        cancelled: Any = Cancelled(
            message="Everything finished is kept; the same command continues from here."
        )
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run.id, cancelled, force=True)
        abort = Abort("cancelled from its page")
        abort.state = cancelled  # type: ignore[attr-defined]  read by Prefect's engine
        raise abort from None
    finally:
        ended = True  # first: a signal that arrives from here on must not raise
        with handler_lock:  # a signal sent after the handler is restored would kill the process
            finished.set()
        signal.signal(SIGNAL, previous_handler)


def _watch(run: UUID, finished: threading.Event, handler_lock: threading.Lock) -> None:
    """Poll the state of a flow run until `finished`; once it is cancelled, send `SIGNAL` to this process. The
    lock is held while it is sent, so that its handler is still there.
    """
    from prefect.client.orchestration import get_client

    while not finished.wait(POLL):
        # after any error, such as an unreachable server, connect again at the next poll
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:
            while True:  # one client for all polls: creating one takes longer than a request
                state = client.read_flow_run(run).state
                if state is not None and (state.is_cancelling() or state.is_cancelled()):
                    with handler_lock:
                        if not finished.is_set():
                            os.kill(os.getpid(), SIGNAL)
                    return
                if finished.wait(POLL):
                    return
