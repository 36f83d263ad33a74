"""Further machines of a stage as flow runs: requested once the stage needs them, followed, cancelled. (Real
workers: test_deployments.py.)
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from prefect.client.schemas.objects import State, StateType

from ratchet.components.errors import ServiceError, StageError
from ratchet.components.recipes.plan import Stage
from ratchet.flows.one_machine import one_machine
from ratchet.tasks.process.ranks import JOB, Job
from ratchet.tasks.remote import remote_machines, remote_stage
from ratchet.tasks.remote.remote_machines import RemoteMachines

STAGE = Stage("sft", "sft", "weights", {}, {}, "b" * 64)
SCHEDULED, PENDING, RUNNING = (State(type=StateType(name)) for name in ("SCHEDULED", "PENDING", "RUNNING"))
DONE = State(type=StateType.COMPLETED)
REJECTED = State(type=StateType.FAILED, message="Flow run encountered an exception: Rejected: no GPU")


class Server:
    """Fake Prefect client: flow runs by number, in states that tests set; `away` is raised instead."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.states: dict[int, State[Any]] = {}
        self.cancelled: list[int] = []
        self.away: Exception | None = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def run_deployment(self, name: str, **given: Any) -> Any:
        if self.away:
            raise self.away
        self.requests.append({"name": name, **given})
        self.states.setdefault(len(self.requests), SCHEDULED)
        return SimpleNamespace(id=len(self.requests))

    def read_flow_run(self, run: int) -> Any:
        if self.away:
            raise self.away
        return SimpleNamespace(id=run, state=self.states[run], name=f"run {run}", work_pool_name="far")

    def read_workers_for_work_pool(self, _: str) -> list[Any]:
        return []

    def set_flow_run_state(self, run: int, state: State[Any], **_: Any) -> None:
        assert state.name == ("Cancelling" if self.states[run].is_running() else "Cancelled")
        self.cancelled.append(run)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    fake = Server()
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda **_: fake)
    monkeypatch.setattr("prefect.deployments.run_deployment", fake.run_deployment)
    monkeypatch.setattr(remote_machines, "POLL", 0.0)
    return fake


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    """Writes the job of a stage into the home `tmp_path`."""

    def write(**more: Any) -> Job:
        work = tmp_path / "store" / ".work" / "sft-b"
        work.mkdir(parents=True, exist_ok=True)
        request = {"does": "sft", "work": str(work), "options": {"profile": {"engine": "torch"}}}
        made = Job(request, str(tmp_path / "log"), 3, 3, "127.0.0.1:1", **more)
        (work / JOB).write_text(json.dumps(asdict(made)))
        return made

    return write


def test_machines_are_requested_once_for_the_job_that_the_stage_describes(
    server: Server, job: Callable[..., Job]
) -> None:
    work = Path(job().request["work"])
    with RemoteMachines("one_machine/x")("run-1", STAGE, work) as look:
        look()
        assert not server.requests, "the job of an attempt that was killed"
        made = job()
        server.states = {1: RUNNING, 2: RUNNING}
        look()
        look()
    assert [request["flow_run_name"] for request in server.requests] == [
        "run-1-sft-machine-2",
        "run-1-sft-machine-3",
    ]
    for request in server.requests:
        assert request["name"] == "one_machine/x" and request["timeout"] == 0
        assert request["tags"] == [f"job:{made.id}"]
        assert request["parameters"] == {"work": str(work), "stage": "sft", "job": made.id}
    assert not server.cancelled, "machines that take part end with their job"


@pytest.mark.parametrize(
    ("error", "cancelled"), [(None, [1]), (StageError("failed"), [1]), (KeyboardInterrupt(), [1, 2])]
)
@pytest.mark.parametrize("first", [SCHEDULED, PENDING])
def test_waiting_requests_are_cancelled_with_the_stage_and_all_with_its_flow(
    first: State[Any],
    error: BaseException | None,
    cancelled: list[int],
    server: Server,
    job: Callable[..., Job],
    tmp_path: Path,
) -> None:
    def stage() -> None:
        with RemoteMachines("one_machine/x")("run-1", STAGE, tmp_path / "store/.work/sft-b") as look:
            job()
            server.states = {1: first, 2: RUNNING}
            look()
            if error:
                raise error

    if error:
        with pytest.raises(type(error)):
            stage()
    else:
        stage()
    assert server.cancelled == cancelled


@pytest.mark.parametrize("key", ["", "secret"])
@pytest.mark.parametrize(
    ("end", "reason"),
    [(REJECTED, "Rejected: no GPU"), (State(type=StateType.CANCELLED), "no reason given")],
)
def test_a_rejected_or_cancelled_machine_is_a_warning_and_ends_a_training_stage(
    key: str,
    end: State[Any],
    reason: str,
    server: Server,
    job: Callable[..., Job],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with RemoteMachines("one_machine/x")("run-1", STAGE, tmp_path / "store/.work/sft-b") as look:
        job(key=key)
        server.states = {1: DONE, 2: end}
        for _ in range(3):
            look()
        assert [one.getMessage() for one in caplog.records] == [
            f"machine 3 of stage 'sft': {end.name}: {reason}"
        ]
        monkeypatch.setattr(remote_machines, "ENDED", 0.0)
        if key:
            look()  # engines: the other ones go on
        else:
            with pytest.raises(StageError, match=f"machine 3 of stage 'sft': {end.name}") as raised:
                look()
            assert raised.value.retryable == (end is not REJECTED)


def test_machines_without_a_worker_and_a_server_that_is_away_are_waited_for(
    server: Server,
    job: Callable[..., Job],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from httpx import ConnectError
    from prefect.exceptions import ObjectNotFound

    with RemoteMachines("one_machine/x")("run-1", STAGE, tmp_path / "store/.work/sft-b") as look:
        job()
        server.away = ConnectError("refused")
        with pytest.raises(ServiceError, match="does not answer about one_machine/x"):
            look()
    with RemoteMachines("one_machine/x")("run-1", STAGE, tmp_path / "store/.work/sft-b") as look:
        job()
        server.away = None
        look()
        for server.away in (ConnectError("refused"), ObjectNotFound(Exception("a run was deleted"))):
            look()
        server.away = None
        server.states = {1: SCHEDULED, 2: RUNNING}
        look()
        assert not caplog.records
        monkeypatch.setattr(remote_stage, "UNWORKED", 0.0)
        look()
    waiting, offline = (one.getMessage() for one in caplog.records)
    assert waiting == "machine 2 of stage 'sft' waits for a worker"
    assert "machine 3 of stage 'sft' runs, but no worker of the work pool 'far' is online" in offline


def test_a_machine_takes_part_in_the_job_it_was_requested_for_only(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, logger = job(), Mock()
    flow = importlib.import_module("ratchet.flows.one_machine")
    monkeypatch.setattr(flow, "get_run_logger", lambda: logger)
    with pytest.raises(StageError, match=r"its home \S+/elsewhere is not here; .*same path"):
        one_machine.fn(str(tmp_path / "elsewhere/store/.work/sft-b"), stage="sft", job=made.id)
    one_machine.fn(made.request["work"], stage="sft", job="of an earlier attempt")
    assert "has ended without this machine" in logger.info.call_args.args[0]


def test_a_machine_runs_its_part_as_a_named_task_on_its_gpus(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, seen = importlib.import_module("ratchet.flows.one_machine"), []

    class Task:
        def with_options(self, **options: Any) -> Callable[..., None]:
            return lambda *given: seen.append((options, given, os.environ["CUDA_VISIBLE_DEVICES"]))

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr(flow, "machine", Task())
    monkeypatch.setattr(flow, "gpu_slots", lambda count: contextlib.nullcontext(("5",) * count))
    for key, what in (("", "ranks of sft"), ("secret", "engines of sft")):
        made = job(key=key)
        one_machine.fn(made.request["work"], stage="sft", job=made.id, gpus=1)
        assert seen.pop() == ({"task_run_name": what}, (Path(made.request["work"]) / JOB, made), "5")


def test_a_machine_that_cannot_reach_the_stage_says_why(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = importlib.import_module("ratchet.flows.one_machine")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    monkeypatch.setattr(flow, "get_run_logger", Mock())
    made = job()
    file = Path(made.request["work"]) / JOB
    unreachable = Job(**{**asdict(made), "endpoint": f"127.0.0.1:{port}"})
    with pytest.raises(StageError, match=rf"cannot use this machine: 127.0.0.1:{port} does not answer"):
        flow.machine.fn(file, unreachable)
