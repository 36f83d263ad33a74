"""Remote stages: run one stage on a different Prefect work pool, as a flow run of `one_stage`.

The machines share no disk. The flow sends the exchange address and the stage key; the worker downloads inputs
from the exchange by key and uploads the output, which the flow downloads. A resumed flow finds the stage
finished, or still running, and does not request it twice.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import ServiceError, StageError
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.recipe import dump
from ratchet.components.storage.store import write_atomic
from ratchet.components.types import Artifact
from ratchet.tasks.machine.system import rebase_timestamps, samples_of
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.remote.exchange import Exchange

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

log = logging.getLogger("ratchet.remote_stage")
POLL = 2.0  # seconds between polls of a stage's flow run
UNWORKED = 60.0  # seconds between two looks at whether there is a worker


@dataclass(frozen=True)
class RemoteStage:
    """Runs stages through `deployment`, the `flow/name` of a deployment of `one_stage`."""

    exchange: Exchange
    deployment: str

    def __call__(self, pipeline: Pipeline, stage: Stage) -> Artifact:
        """The output, in this machine's store. `StageError` if the stage failed, retryable if it crashed."""
        made = self.exchange.pull(pipeline.store, stage.name, stage.key)
        if made is None:
            for name in stage.inputs.values():
                self.exchange.push(pipeline.artifact(name))
            self._run(pipeline, stage)
            made = self.exchange.pull(pipeline.store, stage.name, stage.key)
        if made is None:
            raise StageError(
                f"stage {stage.name!r}: {self.deployment} reports success, but the output is not at "
                f"{self.exchange.address}; check that both machines use the same location"
            )
        run = pipeline.run.path
        # optional: system metrics of the worker
        with contextlib.suppress(ServiceError, ValueError, KeyError):
            if samples := self.exchange.get_note(stage.name, stage.key, samples_of(run).name):
                write_atomic(samples_of(run, stage.name), rebase_timestamps(samples_of(run), samples))
        return made

    def _run(self, pipeline: Pipeline, stage: Stage) -> None:
        """Start the stage's flow run, or find one in progress, and wait for it. Cancelled with this flow if
        started by it.
        """
        from httpx import HTTPError
        from prefect.client.orchestration import get_client
        from prefect.deployments import run_deployment
        from prefect.states import Cancelling

        mark, own = f"key:{stage.key[:16]}", pipeline.run.name
        given = {
            "recipe": dump(pipeline.recipe, pipeline.profile),
            "stage": stage.name,
            "key": stage.key,
            "run": own,
            "artifacts": self.exchange.address,
        }
        options = {"parameters": given, "tags": [mark], "timeout": 0, "flow_run_name": f"{own}-{stage.name}"}
        with server_errors(self.deployment), get_client(sync_client=True) as client:
            run: Any = _under_way(client, mark, self.exchange.address)
            run = run or run_deployment(self.deployment, **options)
            ours = run.parameters.get("run") == own
            try:
                state = _ended(client, run.id, f"stage {stage.name!r} of {self.deployment}")
            except HTTPError:  # the remote run continues and is found at the next attempt
                raise
            except BaseException:
                if ours:  # otherwise another run may still need it
                    client.set_flow_run_state(run.id, Cancelling(), force=True)
                raise
        if state.is_cancelled() and not ours:  # cancelled with the run that started it: start it again
            self._run(pipeline, stage)
        elif not state.is_completed():
            raise StageError(
                f"stage {stage.name!r} on {self.deployment}: {reason(state)}", died=state.is_crashed()
            )


@contextlib.contextmanager
def server_errors(deployment: str) -> Iterator[None]:
    """`ServiceError` if the Prefect server does not answer or has no such deployment."""
    from httpx import HTTPError
    from prefect.exceptions import ObjectNotFound

    try:
        yield
    except ObjectNotFound as error:
        raise ServiceError(
            f"the Prefect server has no deployment {deployment}; create it with `ratchet deploy`"
        ) from error
    except HTTPError as error:
        raise ServiceError(
            f"the Prefect server does not answer about {deployment}: {type(error).__name__}: {error}"
        ) from error


def reason(state: State) -> str:
    """The name of a final state, and why a flow run ended in it."""
    why = (state.message or "no reason given").removeprefix("Flow run encountered an exception: ")
    return f"{state.name}: {why}"


def _under_way(client: Any, mark: str, address: str) -> Any:
    """The unfinished flow run with this tag that uploads to this exchange, started by any run."""
    from prefect.client.schemas.filters import FlowRunFilter

    living = ["SCHEDULED", "PENDING", "RUNNING", "PAUSED"]
    wanted = {"tags": {"all_": [mark]}, "state": {"type": {"any_": living}}}
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted))
    return next((run for run in found if run.parameters.get("artifacts") == address), None)


def _ended(client: Any, run_id: Any, stage: str) -> Any:
    """Wait for the final state of a flow run. Warns once if no worker starts it, and once if none of its work
    pool is online while it runs: Prefect leaves the run of a machine that is gone as it is.
    """
    looked, warned = time.monotonic(), set[str]()
    while not (run := client.read_flow_run(run_id)).state.is_final():
        if time.monotonic() - looked > UNWORKED:
            looked, why = time.monotonic(), unworked(client, run, stage)
            if why and why not in warned:
                log.warning("%s", why)
                warned.add(why)
        time.sleep(POLL)
    return run.state


def unworked(client: Any, run: Any, what: str) -> str:
    """Why an unfinished flow run may not get on: no worker starts it, or none of its work pool is online;
    empty if there is no such reason.
    """
    if run.state.is_scheduled():
        return f"{what} waits for a worker"
    if run.work_pool_name and not _online(client, run.work_pool_name):
        return (
            f"{what} runs, but no worker of the work pool {run.work_pool_name!r} is online; if its "
            f"machine is gone, cancel the flow run {run.name!r} on Prefect's page and run again"
        )
    return ""


def _online(client: Any, pool: str) -> bool:
    return any(worker.status.value == "ONLINE" for worker in client.read_workers_for_work_pool(pool))
