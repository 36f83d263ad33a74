"""The Prefect flow of one remote stage: runs in the work pool that a deployment's `stages` names, on behalf
of another worker's run.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from ratchet.components.errors import ContractError
from ratchet.tasks.machine.system import sampled, samples_of
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.locks import gpu_slots
from ratchet.tasks.remote.exchange import Exchange
from ratchet.tasks.remote.remote_machines import RemoteMachines
from ratchet.tasks.stages import make
from ratchet.tasks.tracking.ending import ending
from ratchet.tasks.tracking.prefect_page import PrefectPage


@flow(name="one_stage", flow_run_name="{run}-{stage}", persist_result=False, validate_parameters=False)
def one_stage(
    recipe: str,
    *,
    stage: str,
    key: str,
    run: str,
    artifacts: str,
    home: str = "out",
    gpus: int = 0,
    machines: str | None = None,
) -> None:
    """Download the stage's inputs from `artifacts`, run the stage, upload its output. `machines`: as in
    `post_training`.

    `recipe` is the run's resolved recipe (`ratchet.components.recipes.recipe.dump`). `ContractError` if this
    worker's code gives the stage another key than the run's, or an input is missing; otherwise the errors of
    the stage.
    """
    pipeline = Pipeline.again(recipe, home=Path(home), run=f"{run}.{stage}")
    planned, exchange = pipeline.stages.get(stage), Exchange(artifacts)
    if planned is None or planned.key != key:
        raise ContractError(
            f"stage {stage!r} has the key {planned.key[:16] if planned else 'of no stage'} by this "
            "worker's code, "
            f"the run's is {key[:16]}; bring both to the same revision"
        )
    pipeline.watchers[:] = [PrefectPage()]
    pipeline.machines = RemoteMachines(machines) if machines else None
    pipeline.begin()  # before the first download, so that `ratchet gc` keeps the inputs
    try:
        for name in planned.inputs.values():
            if exchange.pull(pipeline.store, name, pipeline.stages[name].key) is None:
                raise ContractError(
                    f"stage {stage!r} needs {name} {pipeline.stages[name].key[:16]}, which is not at "
                    f"{artifacts}"
                )
        samples = samples_of(pipeline.run.path)
        with sampled(samples):
            with gpu_slots(gpus) as pipeline.devices:
                made = make(pipeline, stage)
            exchange.push(made)
        if samples.exists():  # missing on machines without system metrics
            exchange.put_note(stage, key, samples)
    except BaseException as error:
        state, found = ending(error)
        pipeline.end(state, **found)
        raise
    pipeline.end("finished")
