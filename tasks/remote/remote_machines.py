"""Further machines of a stage over several: flow runs of `one_machine`, requested from a Prefect work pool.

The stage's process describes its job in `job.json` of its workspace (`tasks/process/ranks.py`), on a disk
that all machines share. The flow then requests one flow run per further machine. A run ends with its job;
those that no worker has begun by then are cancelled.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import StageError
from ratchet.components.recipes.plan import Stage
from ratchet.tasks.process.joining import read_job
from ratchet.tasks.process.ranks import JOB, Job
from ratchet.tasks.remote import remote_stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

log = logging.getLogger("ratchet.remote_machines")
POLL = 5.0  # seconds between polls of the flow runs
ENDED = 60.0  # seconds that a training stage may go on without a machine, until it has said by itself why


@dataclass(frozen=True)
class RemoteMachines:
    """Requests machines through `deployment`, the `flow/name` of a deployment of `one_machine`."""

    deployment: str

    @contextlib.contextmanager
    def __call__(self, run: str, stage: Stage, work: Path) -> Iterator[Callable[[], None]]:
        """While a stage of a run runs in the workspace `work`: yields a function to call repeatedly, which
        requests the machines when the stage needs them. It raises `ServiceError` if the Prefect server
        cannot be asked, and `StageError` if a machine of a training stage has ended and the stage goes on.
        """
        file = work / JOB
        file.unlink(missing_ok=True)  # of an attempt that was killed
        machines, interrupted = _Machines(self.deployment, run, stage.name), True
        try:
            yield lambda: machines.look(file)
            interrupted = False
        except Exception:
            interrupted = False
            raise
        finally:
            machines.cancel(begun=interrupted)


@dataclass
class _Machines:
    deployment: str
    run: str
    stage: str
    job: Job | None = None
    runs: dict[UUID, str] = field(default_factory=dict)  # requested flow runs: the machine, for messages
    ended: dict[UUID, float] = field(default_factory=dict)  # those without success: since when
    warned: set[str] = field(default_factory=set)
    requested: float = 0.0
    looked: float = 0.0

    def look(self, file: Path) -> None:
        from httpx import HTTPError
        from prefect.client.orchestration import get_client
        from prefect.exceptions import ObjectNotFound

        if self.job is None:
            if (job := read_job(file)) is not None:
                self.job = job
                self._request(job)
        elif time.monotonic() - self.looked > POLL:
            with contextlib.suppress(HTTPError, ObjectNotFound), get_client(sync_client=True) as client:
                for run_id, machine in self.runs.items():
                    self._follow(client, client.read_flow_run(run_id), machine, training=not self.job.key)
            self.looked = time.monotonic()

    def _request(self, job: Job) -> None:
        from prefect.deployments import run_deployment

        self.requested = self.looked = time.monotonic()
        given = {"work": job.request["work"], "stage": self.stage, "job": job.id}
        with remote_stage.server_errors(self.deployment):
            for number in range(2, job.machines + 1):
                name = f"{self.run}-{self.stage}-machine-{number}"
                tags = [f"job:{job.id}"]
                made: Any = run_deployment(
                    self.deployment, parameters=given, tags=tags, timeout=0, flow_run_name=name
                )
                self.runs[made.id] = f"machine {number} of stage {self.stage!r}"

    def _follow(self, client: Any, run: Any, machine: str, *, training: bool) -> None:
        """Warn once of a machine that does not come, or has left; `StageError` if ranks miss it."""
        now, why = time.monotonic(), ""
        if not run.state.is_final():
            if now - self.requested > remote_stage.UNWORKED:
                why = remote_stage.unworked(client, run, machine)
        elif not run.state.is_completed():
            why = f"{machine}: {remote_stage.reason(run.state)}"
            if training and now - self.ended.setdefault(run.id, now) > ENDED:
                raise StageError(why, died=not run.state.is_failed())
        if why and why not in self.warned:
            log.warning("%s", why)
            self.warned.add(why)

    def cancel(self, *, begun: bool) -> None:
        """Cancel unfinished flow runs that have not begun, and with `begun` the others too, which otherwise
        end with their job.
        """
        from httpx import HTTPError
        from prefect.client.orchestration import get_client
        from prefect.exceptions import ObjectNotFound
        from prefect.states import Cancelled, Cancelling

        if not self.runs:
            return
        with contextlib.suppress(HTTPError, ObjectNotFound), get_client(sync_client=True) as client:
            for run_id in self.runs:
                state: Any = client.read_flow_run(run_id).state
                if state.is_scheduled() or state.is_pending():
                    client.set_flow_run_state(run_id, Cancelled())  # a process about to start it will refuse
                elif begun and not state.is_final():
                    client.set_flow_run_state(run_id, Cancelling())  # its worker ends the process
