"""A stage run by another worker: submitted once, found again after a restart, cancelled with its flow. (Real
workers: test_deployments.py.)
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from prefect.client.schemas.objects import State, StateType, WorkerStatus

from ratchet.components.errors import ContractError, ServiceError, StageError
from ratchet.components.recipes.plan import Stage
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store
from ratchet.components.types import Artifact
from ratchet.flows.one_stage import one_stage
from ratchet.tasks.machine.system import samples_of
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.remote import remote_stage
from ratchet.tasks.remote.exchange import Exchange
from ratchet.tasks.remote.remote_stage import RemoteStage


def state(kind: StateType, message: str | None = None) -> State[Any]:
    return State(type=kind, message=message)


class Server:
    """Fake Prefect client: runs by id, each with a sequence of states."""

    def __init__(self, *states: State[Any], worker: Any = None) -> None:
        self.states, self.worker = list(states), worker
        self.requests: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.living: list[Any] = []
        self.workers = ["ONLINE", "OFFLINE"]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def read_flow_runs(self, **_: Any) -> list[Any]:
        return self.living

    def read_flow_run(self, run: str) -> Any:
        now = self.states.pop(0)
        if isinstance(now, BaseException):
            raise now
        if now.is_cancelled():
            self.living = []
        if now.is_completed() and self.worker:
            self.worker(self.requests[-1] if self.requests else None)
        return SimpleNamespace(state=now, name="a run", work_pool_name="far")

    def read_workers_for_work_pool(self, pool: str) -> list[Any]:
        assert pool == "far"
        return [SimpleNamespace(status=WorkerStatus(status)) for status in self.workers]

    def set_flow_run_state(self, run: str, state: State[Any], **_: Any) -> None:
        self.cancelled.append(f"{run} {state.name}")

    def run_deployment(self, name: str, **given: Any) -> Any:
        self.requests.append({"name": name, **given})
        return SimpleNamespace(id="run-1", parameters=given["parameters"])


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> Any:
    def with_(server: Server) -> Server:
        monkeypatch.setattr("prefect.client.orchestration.get_client", lambda **_: server)
        monkeypatch.setattr("prefect.deployments.run_deployment", server.run_deployment)
        monkeypatch.setattr(remote_stage, "POLL", 0.0)
        return server

    return with_


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """One finished stage and one that reads it."""
    opened = Pipeline.open("sft", home=tmp_path / "near", profile="test")
    opened.stages = {
        "raw": Stage("raw", "fetch_data", "data", {}, key="a" * 64),
        "sft": Stage("sft", "sft", "weights", {}, {"data": "raw"}, "b" * 64),
    }
    finish(opened.store, "raw", "a" * 64)
    opened.run = RunDirectory(tmp_path / "near", "sft-1")
    return opened


def finish(store: Store, stage: str, key: str) -> Artifact:
    with store.working(stage, key) as work:
        (work.product / "file").write_text(stage)
        return store.publish(work, stage, key, "data", [], {})


DONE, RUNNING, WAITING = state(StateType.COMPLETED), state(StateType.RUNNING), state(StateType.SCHEDULED)


def test_remote_stage_uploads_inputs_and_downloads_the_output(
    tmp_path: Path, pipeline: Pipeline, meet: Any
) -> None:
    exchange = Exchange(str(tmp_path / "between"))

    def worker(request: Any) -> None:
        far = Store(tmp_path / "far")
        assert exchange.pull(far, "raw", "a" * 64), "the input did not lie there"
        exchange.push(finish(far, "sft", request["parameters"]["key"]))
        (tmp_path / "system.jsonl").write_text(
            "".join(
                json.dumps({"step": s, "time": 1060.4 + s, "metrics": {"system/x": s}}) + "\n"
                for s in (0, 10)
            )
        )
        exchange.put_note("sft", request["parameters"]["key"], tmp_path / "system.jsonl")

    ours = samples_of(pipeline.run.path)
    ours.parent.mkdir(parents=True)
    ours.write_text(json.dumps({"step": 0, "time": 1000.0, "metrics": {}}) + "\n")
    server = meet(Server(WAITING, RUNNING, DONE, worker=worker))
    pipeline.remote["sft"] = RemoteStage(exchange, "one_stage/nightly.sft")
    artifact = pipeline.make("sft")
    assert (
        artifact.path == pipeline.store.path("sft", "b" * 64) == pipeline.run.stages()["sft"]
        and (artifact.path / "file").read_text() == "sft"
    )
    (request,) = server.requests
    assert request["name"] == "one_stage/nightly.sft" and request["tags"] == [f"key:{'b' * 16}"]
    assert {k: v for k, v in request["parameters"].items() if k != "recipe"} == {
        "stage": "sft",
        "key": "b" * 64,
        "run": "sft-1",
        "artifacts": str(tmp_path / "between"),
    }
    assert pipeline.make("sft") == artifact and len(server.requests) == 1
    seen = [json.loads(line) for line in samples_of(pipeline.run.path, "sft").read_text().splitlines()]
    assert [(line["step"], line["time"], line["metrics"]["system/x"]) for line in seen] == [
        (60, 1060.4, 0),
        (70, 1070.4, 10),
    ], "not on our clock"


@pytest.mark.parametrize("note", ["", "{", '{"metrics": {}}\n', None])
def test_invalid_note_does_not_discard_the_artifact(
    note: str | None, tmp_path: Path, pipeline: Pipeline, meet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Exchange(str(tmp_path / "between"))
    exchange.push(finish(Store(tmp_path / "far"), "sft", "b" * 64))
    if note is None:
        monkeypatch.setattr(exchange, "get_note", Mock(side_effect=ServiceError("away")))
    else:
        (tmp_path / "system.jsonl").write_text(note)
        exchange.put_note("sft", "b" * 64, tmp_path / "system.jsonl")
    pipeline.remote["sft"] = RemoteStage(exchange, "one_stage/nightly.sft")
    assert pipeline.make("sft").path.exists() and not samples_of(pipeline.run.path, "sft").exists()


def test_resumed_flow_submits_no_second_run(tmp_path: Path, pipeline: Pipeline, meet: Any) -> None:
    exchange = Exchange(str(tmp_path / "between"))
    pipeline.remote["sft"] = RemoteStage(exchange, "one_stage/nightly.sft")
    server = meet(
        Server(
            RUNNING, DONE, worker=lambda _: exchange.push(finish(Store(tmp_path / "far"), "sft", "b" * 64))
        )
    )
    server.living = [SimpleNamespace(id="run-0", parameters={"run": "sft-1", "artifacts": exchange.address})]
    pipeline.make("sft")
    assert not server.requests, "one was under way"
    finished = meet(Server())
    again = Pipeline(
        pipeline.recipe,
        pipeline.profile,
        pipeline.stages,
        Store(tmp_path / "third"),
        RunDirectory(tmp_path / "third", "sft-1"),
    )
    finish(again.store, "raw", "a" * 64)
    again.remote["sft"] = RemoteStage(exchange, "one_stage/nightly.sft")
    again.make("sft")
    assert not finished.requests, "it lay at the exchange"


@pytest.mark.parametrize(
    ("ended", "message", "again"),
    [
        (
            state(
                StateType.FAILED, "Flow run encountered an exception: TrainingError: the loss is not finite"
            ),
            "stage 'sft' on one_stage/x: Failed: TrainingError: the loss is not finite",
            False,
        ),
        (state(StateType.CRASHED, "Flow run process exited with status code -9"), "Crashed: .*-9", True),
        (state(StateType.CANCELLED), "Cancelled: no reason given", False),
        (DONE, "reports success, but the output is not at", False),
    ],
)
def test_remote_failure_is_reported(
    ended: State[Any], message: str, again: bool, tmp_path: Path, pipeline: Pipeline, meet: Any
) -> None:
    meet(Server(ended))
    pipeline.remote["sft"] = RemoteStage(Exchange(str(tmp_path / "between")), "one_stage/x")
    with pytest.raises(StageError, match=message) as error:
        pipeline.make("sft")
    assert error.value.retryable == again


@pytest.mark.parametrize(
    ("now", "workers", "warnings"),
    [
        (WAITING, ["ONLINE"], ["stage 'sft' of one_stage/x waits for a worker"]),
        (RUNNING, ["OFFLINE", "ONLINE"], []),
        (
            RUNNING,
            ["OFFLINE"],
            [
                "stage 'sft' of one_stage/x runs, but no worker of the work pool 'far' is online; if its "
                "machine is gone, cancel the flow run 'a run' on Prefect's page and run again"
            ],
        ),
    ],
)
def test_a_run_without_a_worker_is_a_warning(
    now: State[Any],
    workers: list[str],
    warnings: list[str],
    tmp_path: Path,
    pipeline: Pipeline,
    meet: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(remote_stage, "UNWORKED", 0.0)
    server = meet(Server(now, now, now, state(StateType.CRASHED)))
    server.workers = workers
    pipeline.remote["sft"] = RemoteStage(Exchange(str(tmp_path / "between")), "one_stage/x")
    with pytest.raises(StageError):
        pipeline.make("sft")
    assert [one.getMessage() for one in caplog.records if one.name == remote_stage.log.name] == warnings


def test_remote_run_is_cancelled_with_its_flow(tmp_path: Path, pipeline: Pipeline, meet: Any) -> None:
    server = meet(Server(RUNNING, KeyboardInterrupt()))  # type: ignore[arg-type]
    pipeline.remote["sft"] = RemoteStage(Exchange(str(tmp_path / "between")), "one_stage/x")
    with pytest.raises(KeyboardInterrupt):
        pipeline.make("sft")
    assert server.cancelled == ["run-1 Cancelling"]


def test_temporary_server_loss_is_tolerated(tmp_path: Path, pipeline: Pipeline, meet: Any) -> None:
    from httpx import ConnectError

    server = meet(Server(RUNNING, ConnectError("refused")))  # type: ignore[arg-type]
    exchange = Exchange(str(tmp_path / "between"))
    pipeline.remote["sft"] = RemoteStage(exchange, "one_stage/x")
    with pytest.raises(ServiceError, match="one_stage/x") as error:
        pipeline.make("sft")
    assert error.value.retryable and not server.cancelled, "hours of work for a second's silence"


def test_remote_run_with_another_exchange_is_not_reused(
    tmp_path: Path, pipeline: Pipeline, meet: Any
) -> None:
    exchange = Exchange(str(tmp_path / "between"))
    pipeline.remote["sft"] = RemoteStage(exchange, "one_stage/x")
    server = meet(
        Server(DONE, worker=lambda _: exchange.push(finish(Store(tmp_path / "far"), "sft", "b" * 64)))
    )
    server.living = [
        SimpleNamespace(
            id="run-0", parameters={"run": "other-2", "artifacts": "s3://bucket/of-another-deployment"}
        )
    ]
    pipeline.make("sft")
    assert len(server.requests) == 1


def test_cancelling_one_run_does_not_cancel_a_shared_remote_stage(
    tmp_path: Path, pipeline: Pipeline, meet: Any
) -> None:
    exchange = Exchange(str(tmp_path / "between"))
    pipeline.remote["sft"] = RemoteStage(exchange, "one_stage/x")
    theirs = SimpleNamespace(id="run-0", parameters={"run": "other-2", "artifacts": exchange.address})
    server = meet(Server(RUNNING, KeyboardInterrupt()))  # type: ignore[arg-type]
    server.living = [theirs]
    with pytest.raises(KeyboardInterrupt):
        pipeline.make("sft")
    assert not server.cancelled, "we ended what another run waits for"

    def gone(request: Any) -> None:
        exchange.push(finish(Store(tmp_path / "far"), "sft", "b" * 64))

    server = meet(Server(RUNNING, state(StateType.CANCELLED), DONE, worker=gone))
    server.living = [theirs]
    pipeline.make("sft")
    assert [request["parameters"]["run"] for request in server.requests] == ["sft-1"], (
        "theirs was cancelled, and ours not asked for"
    )


def test_unreachable_server_and_missing_deployment_are_errors(
    tmp_path: Path, pipeline: Pipeline, meet: Any
) -> None:
    from httpx import ConnectError
    from prefect.exceptions import ObjectNotFound

    pipeline.remote["sft"] = RemoteStage(Exchange(str(tmp_path / "between")), "one_stage/x")
    for raised, message in (
        (ConnectError("refused"), "does not answer about one_stage/x: ConnectError: refused"),
        (ObjectNotFound(Exception()), "has no deployment one_stage/x; create it with `ratchet deploy`"),
    ):
        server = meet(Server())
        server.read_flow_runs = lambda raised=raised, **_: (_ for _ in ()).throw(raised)  # type: ignore[method-assign]
        with pytest.raises(ServiceError, match=message):
            pipeline.make("sft")


def test_worker_with_another_revision_is_an_error(tmp_path: Path) -> None:
    from ratchet.components.recipes.recipe import dump

    opened = Pipeline.open("sft", home=tmp_path, profile="test")
    given = {
        "recipe": dump(opened.recipe, opened.profile),
        "run": "sft-1",
        "artifacts": str(tmp_path / "between"),
        "home": str(tmp_path / "far"),
    }
    ours = opened.stages["sft"].key
    with pytest.raises(ContractError, match=rf"'sft'.*{ours[:16]}.*bbbbbbbbbbbbbbbb"):
        one_stage.fn(stage="sft", key="b" * 64, **given)
    with pytest.raises(ContractError, match="'sfft'"):
        one_stage.fn(stage="sfft", key="b" * 64, **given)
    assert not (tmp_path / "far" / "runs").exists()
    with pytest.raises(ContractError, match=r"'sft'.*model_policy"):
        one_stage.fn(stage="sft", key=ours, **given)
    (state_file,) = (tmp_path / "far" / "runs").glob("*/run.json")
    assert json.loads(state_file.read_text())["state"] == "failed"


def test_worker_samples_system_metrics_during_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ratchet.components.recipes.recipe import dump

    flow, opened, between = (
        importlib.import_module("ratchet.flows.one_stage"),
        Pipeline.open("sft", home=tmp_path, profile="test"),
        str(tmp_path / "between"),
    )
    monkeypatch.setattr(flow, "make", lambda pipeline, name: pipeline.make(name))
    monkeypatch.setattr(flow, "PrefectPage", Mock)
    key = opened.stages["raw"].key
    one_stage.fn(
        dump(opened.recipe, opened.profile),
        stage="raw",
        key=key,
        run="sft-1",
        artifacts=between,
        home=str(tmp_path / "far"),
    )
    assert Exchange(between).pull(Store(tmp_path / "third"), "raw", key)
    note = Exchange(between).get_note("raw", key, "system.jsonl")
    assert note and note == samples_of(tmp_path / "far" / "runs" / "sft-1.raw").read_text()
    samples = [json.loads(line) for line in note.splitlines()]
    assert len(samples) >= 2 and samples[0]["metrics"]["system/run_memory_usage_megabytes"] > 0
