"""A stage on another work pool than its flow's: a run of the flow `one_stage` there.

The two machines share no disk. The flow sends the address of the exchange and the key of the stage; the worker takes the
inputs from the exchange by their keys and puts the product there, from where the flow takes it. A flow that was killed
meets the stage again when it is resumed: finished at the exchange, or still being made, and is not asked for twice.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from ratchet.components.errors import ServiceError, StageError
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.recipe import dump
from ratchet.components.storage.store import write_atomic
from ratchet.components.types import Artifact
from ratchet.tasks.machine.system import on_clock_of, samples_of
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.remote.exchange import Exchange

log = logging.getLogger("ratchet.elsewhere")
LOOK = 2.0  # seconds between two looks at a stage's run
UNWORKED = 60.0  # seconds without a worker until the log says so


@dataclass(frozen=True)
class Elsewhere:
    """Makes a stage through `deployment`, the `flow/name` of a deployment of `one_stage` (`flows/deployments.py`)."""

    exchange: Exchange
    deployment: str

    def __call__(self, pipeline: Pipeline, stage: Stage) -> Artifact:
        """The product, in this machine's store. Raises what the stage said as a `StageError`, retryable when its run crashed."""
        made = self.exchange.pull(pipeline.store, stage.name, stage.key)
        if made is None:
            for name in stage.inputs.values():
                self.exchange.push(pipeline.artifact(name))
            self._run(pipeline, stage)
            made = self.exchange.pull(pipeline.store, stage.name, stage.key)
        if made is None:
            raise StageError(f"stage {stage.name!r}: {self.deployment} says that it is made, and it is not at {self.exchange.address}; "
                             "do both see the same place?")
        with contextlib.suppress(ServiceError, ValueError, KeyError):  # the product is there, this is only about it
            if samples := self.exchange.told(stage.name, stage.key, samples_of(pipeline.run.path).name):
                write_atomic(samples_of(pipeline.run.path, stage.name), on_clock_of(samples_of(pipeline.run.path), samples))
        return made

    def _run(self, pipeline: Pipeline, stage: Stage) -> None:
        """Start the stage's run there, or find the one that is under way, and wait for its end. It ends with us if we asked for it."""
        from httpx import HTTPError
        from prefect.client.orchestration import get_client
        from prefect.deployments import run_deployment
        from prefect.states import Cancelling

        with asked(self.deployment), get_client(sync_client=True) as client:
            mark = f"key:{stage.key[:16]}"
            run = _under_way(client, mark, self.exchange.address)
            if run is None:
                given = {"recipe": dump(pipeline.recipe, pipeline.profile), "stage": stage.name, "key": stage.key,
                         "run": pipeline.run.name, "artifacts": self.exchange.address}
                run = cast(Any, run_deployment(self.deployment, parameters=given, tags=[mark], timeout=0,
                                               flow_run_name=f"{pipeline.run.name}-{stage.name}"))
            ours = run.parameters.get("run") == pipeline.run.name
            try:
                state = _ended(lambda: client.read_flow_run(run.id).state, f"stage {stage.name!r} waits for a worker that takes {self.deployment}")
            except HTTPError:  # the server is away: what is made there goes on, and is found under way at the next try
                raise
            except BaseException:
                if ours:  # another run that needs the same goes on
                    client.set_flow_run_state(run.id, Cancelling(), force=True)
                raise
        if state.is_cancelled() and not ours:  # with the run that had asked for it: now we ask
            self._run(pipeline, stage)
        elif not state.is_completed():
            why = (state.message or "it gives no reason").removeprefix("Flow run encountered an exception: ")
            raise StageError(f"stage {stage.name!r} on {self.deployment}: {state.name}: {why}", died=state.is_crashed())


def _under_way(client: Any, mark: str, address: str) -> Any:
    """The run with this tag that has not ended and brings its product to this exchange, whoever asked for it."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
        FlowRunFilterTags,
    )
    from prefect.client.schemas.objects import StateType

    living = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(
        tags=FlowRunFilterTags(all_=[mark]), state=FlowRunFilterState(type=FlowRunFilterStateType(any_=living))))
    return next((run for run in found if run.parameters.get("artifacts") == address), None)


def _ended(look: Callable[[], Any], waiting: str) -> Any:
    """The state a run ends in; says once when nobody begins it."""
    begun, told = time.monotonic(), False
    while not (state := look()).is_final():
        if state.is_scheduled() and not told and time.monotonic() - begun > UNWORKED:
            log.warning("%s", waiting)
            told = True
        time.sleep(LOOK)
    return state


@contextlib.contextmanager
def asked(deployment: str) -> Iterator[None]:
    """What Prefect's client raises, as one sentence about the deployment."""
    from httpx import HTTPError
    from prefect.exceptions import ObjectNotFound

    try:
        yield
    except ObjectNotFound as error:
        raise ServiceError(f"the Prefect server has no deployment {deployment}; `ratchet deploy` makes it") from error
    except HTTPError as error:
        raise ServiceError(f"the Prefect server does not answer about {deployment}: {type(error).__name__}: {error}") from error
