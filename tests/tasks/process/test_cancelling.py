"""Cancellation from the Prefect UI of a run started on the command line. (Real server:
tests/flows/test_deployments.py.)
"""

from __future__ import annotations

import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.objects import StateType
from prefect.exceptions import Abort
from prefect.states import State

from ratchet.tasks.process import cancelling


class Server:
    """Fake Prefect client: a sequence of run states or errors, one per poll, the last repeated."""

    def __init__(self, *states: Any) -> None:
        self.states, self.set, self.opened = list(states), [], 0

    def __enter__(self) -> Server:
        self.opened += 1
        return self

    def __exit__(self, *_: Any) -> None: ...

    def read_flow_run(self, run: str) -> Any:
        now = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(now, Exception):
            raise now
        return SimpleNamespace(state=State(type=now))

    def set_flow_run_state(self, run: str, state: State[Any], *, force: bool) -> None:
        self.set.append((run, state.type, force))


def during(
    server: Server, monkeypatch: pytest.MonkeyPatch, seconds: float = 5.0, deployment: str | None = None
) -> None:
    run = SimpleNamespace(id="run-1", deployment_id=deployment)
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda **_: server)
    monkeypatch.setattr("prefect.context.FlowRunContext.get", lambda: SimpleNamespace(flow_run=run))
    monkeypatch.setattr(cancelling, "POLL", 0.01)
    with cancelling.cancel_on_prefect_request():
        time.sleep(seconds)


@pytest.fixture(autouse=True)
def in_the_background(request: pytest.FixtureRequest) -> None:
    """A background process of a shell script, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))


@pytest.mark.parametrize("requested_state", [StateType.CANCELLING, StateType.CANCELLED])
def test_cancelled_run_ends_in_state_cancelled(
    requested_state: StateType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the server is unreachable for one poll."""
    server = Server(StateType.RUNNING, ConnectionError("away"), StateType.RUNNING, requested_state)
    with pytest.raises(Abort) as raised:
        during(server, monkeypatch)
    assert server.set == [("run-1", StateType.CANCELLED, True)] and raised.value.state.is_cancelled()  # type: ignore[attr-defined]


def test_uncancelled_run_continues_and_polling_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(StateType.RUNNING)
    handler = signal.getsignal(cancelling.SIGNAL)
    during(server, monkeypatch, 0.2)
    assert server.opened == 1, "one client for all polls"
    assert signal.getsignal(cancelling.SIGNAL) is handler
    server.states = [StateType.CANCELLED]
    time.sleep(0.2)  # the signal would come here, and end us
    assert not server.set and not any(thread.name.endswith("(_watch)") for thread in threading.enumerate())


def test_runs_of_a_worker_are_not_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(StateType.CANCELLING)
    during(server, monkeypatch, 0.2, deployment="nightly")
    assert not server.set


def test_ctrl_c_still_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(StateType.RUNNING)
    monkeypatch.setattr(time, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        during(server, monkeypatch)
    assert not server.set


def test_a_signal_after_the_body_has_ended_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent just before the handler is restored."""
    server, handler = Server(StateType.RUNNING), signal.getsignal(cancelling.SIGNAL)
    lock = threading.Lock

    class Late:
        def __init__(self) -> None:
            self.lock = lock()

        def __enter__(self) -> None:
            self.lock.acquire()
            signal.raise_signal(cancelling.SIGNAL)

        def __exit__(self, *_: Any) -> None:
            self.lock.release()

    monkeypatch.setattr(cancelling, "threading", SimpleNamespace(**{**vars(threading), "Lock": Late}))
    during(server, monkeypatch, 0.0)
    assert not server.set and signal.getsignal(cancelling.SIGNAL) is handler
