"""The pipeline: curate → phases (such as SFT → reward model → online rounds) → evaluate → register."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from prefect import flow

from ratchet.components.recipes.check_models import check_layers, check_model
from ratchet.components.stages import WAITING
from ratchet.components.stages.ask import Waiting
from ratchet.flows.commands.options import Until
from ratchet.flows.dvc_workspace import publish_and_commit
from ratchet.tasks.data.drift import check_data_drift, check_result_drift
from ratchet.tasks.labels.waiting import deployed_flow_run, suspend, unanswered_queue
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.cancelling import cancel_on_prefect_request
from ratchet.tasks.process.locks import IfRunning, file_lock, gpu_slots
from ratchet.tasks.registry.registration import model_of, register_run
from ratchet.tasks.remote.exchange import Exchange
from ratchet.tasks.remote.remote_machines import RemoteMachines
from ratchet.tasks.remote.remote_stage import RemoteStage
from ratchet.tasks.stages import make
from ratchet.tasks.tracking.watchers import watched


@flow(name="post_training", flow_run_name="{recipe}", persist_result=False, validate_parameters=False)
def post_training(
    recipe: str,
    *,
    home: str = "out",
    overrides: list[str] | None = None,
    profile: str | None = None,
    until: Until = "register",
    if_running: IfRunning = "wait",
    gpus: int = 0,
    remote_stages: dict[str, str] | None = None,
    artifacts: str | None = None,
    machines: str | None = None,
    display: Any = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Run a recipe to `until` (curate, train, evaluate, register). Finished stages are reused.

    If another process is executing the same run, wait for it or fail (`if_running`). Stages that train or
    sample on this machine hold `gpus` slots of the Prefect concurrency limit `gpu` while they run. A run of a
    deployment is suspended while people label; the labelling page resumes it.
    `remote_stages` maps kinds of stages to the deployments that run them; those exchange outputs through the
    address `artifacts`. `machines` is the deployment of `one_machine` that supplies the further machines of a
    stage; without it they join by `ratchet join`. `limit` makes it a smoke test. Raises `BusyError` and the
    errors of the stages.
    """
    pipeline = Pipeline.open(recipe, home=Path(home), overrides=overrides or (), profile=profile, limit=limit)
    pipeline.remote |= {
        does: RemoteStage(Exchange(artifacts or ""), deployment)
        for does, deployment in (remote_stages or {}).items()
    }
    pipeline.machines = RemoteMachines(machines) if machines else None
    with (
        cancel_on_prefect_request(),
        file_lock(pipeline.run.path / "lock", f"run {pipeline.run.name}", if_running),
        watched(pipeline, display) as tracking,
    ):
        curate(pipeline)
        check_data_drift(pipeline)
        if until == "curate":
            return {"run": pipeline.run.name}
        flow_run = deployed_flow_run()
        queue = make_part(pipeline, "train", gpus, suspends=flow_run is not None)
        if queue is not None and flow_run is not None:
            suspend(queue, flow_run)
        if until != "train":
            make_part(pipeline, "evaluate", gpus)
        if until in ("train", "evaluate"):
            return {"run": pipeline.run.name}
        check_result_drift(pipeline)
        registered = register_run(pipeline, tracking.run_id(wait_seconds=30))
        versions = {
            stage: f"{model_of(pipeline, stage)}:{number}"
            for stage, number in registered.get("versions", {}).items()
        }
        pipeline.run.record(
            postponed=registered.get("postponed"),
            champion=registered.get("champion"),
            registered=versions,
        )
        return {
            "run": pipeline.run.name,
            "registered": registered,
            "data": publish_and_commit(pipeline, Path.cwd()),
        }


def curate(pipeline: Pipeline) -> None:
    """Download models and data; clean, split and validate the data."""
    for name in [one.name for one in pipeline.stages.values() if one.part == "curate"]:
        made = make(pipeline, name)
        if name == "model_policy" and (config := made.path / "config.json").is_file():
            settings = json.loads(config.read_text())
            check_model(pipeline.recipe, settings, "models.policy")
            check_layers(made.path, settings)


def make_part(pipeline: Pipeline, part: str, gpus: int = 0, suspends: bool = False) -> Waiting | None:
    """Run the stages of a part in order; those of an online round as a flow of their own. With `suspends` it
    ends at a queue that people have yet to answer, and returns it.
    """
    stages = [stage for stage in pipeline.stages.values() if stage.part == part]
    for (_, number), members in groupby(stages, key=lambda stage: (stage.phase, stage.round)):
        names = [stage.name for stage in members]
        if number is None:
            for name in names:
                make_on_gpus(pipeline, name, gpus)
        elif (queue := online_round(pipeline, number, names, gpus, suspends)) is not None:
            return queue
    return None


@flow(name="online_round", flow_run_name="round-{number}", persist_result=False, validate_parameters=False)
def online_round(
    pipeline: Any, number: int, names: list[str], gpus: int = 0, suspends: bool = False
) -> Waiting | None:
    """One online round: sample answers with the current policy, score them, select pairs or groups, train the
    policy. With `suspends` it ends at a queue that people have yet to answer, and returns it.
    """
    for name in names:
        stage = pipeline.stages[name]
        if suspends and stage.does in WAITING and (queue := unanswered_queue(pipeline, stage)) is not None:
            return queue
        make_on_gpus(pipeline, name, gpus)
    return None


def make_on_gpus(pipeline: Pipeline, name: str, gpus: int) -> None:
    """Run a stage, holding GPU slots only while it runs on this machine. A remote stage acquires its own
    slots; slots held here meanwhile could deadlock two runs that both wait for a remote stage.
    """
    stage = pipeline.stages[name]
    here = stage.does not in (*pipeline.remote, *WAITING) and pipeline.take(stage) is None
    with gpu_slots(gpus if here else 0) as pipeline.devices:
        make(pipeline, name)
