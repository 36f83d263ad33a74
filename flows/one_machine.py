"""The Prefect flow of one further machine of a stage over several: runs in the work pool that a deployment's
`machines` names, on behalf of another worker's run.
"""

from __future__ import annotations

import os
from pathlib import Path

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from ratchet.components.errors import StageError
from ratchet.tasks.process.joining import read_job, take_part
from ratchet.tasks.process.locks import gpu_slots
from ratchet.tasks.process.ranks import JOB, Job


@flow(name="one_machine", persist_result=False, validate_parameters=False)
def one_machine(work: str, *, stage: str, job: str, gpus: int = 0) -> None:
    """Run this machine's ranks or engines of a stage until it ends; nothing if it has ended already.

    `work` is the stage's workspace, in a home that this machine sees under the same path, and `job` the id in
    its `job.json`. Holds `gpus` slots of the Prefect concurrency limit `gpu`. `StageError` if the stage
    cannot use this machine, or its part failed.
    """
    file, home = Path(work) / JOB, Path(work).parents[2]
    if not home.is_dir():
        raise StageError(
            f"stage {stage!r} cannot use this machine: its home {home} is not here; all machines need it "
            "under the same path"
        )
    with gpu_slots(gpus) as devices:
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)  # before this process starts another
        found = read_job(file)
        if found is None or found.id != job:
            get_run_logger().info("stage %r has ended without this machine", stage)
            return
        machine.with_options(task_run_name=f"{'engines' if found.key else 'ranks'} of {stage}")(file, found)


@task(name="machine", cache_policy=NO_CACHE, persist_result=False)
def machine(file: Path, job: Job) -> None:
    """Take part in the stage described in `file`."""
    take_part(file, job, get_run_logger().info)
