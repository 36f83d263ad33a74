"""The pipeline: curate → SFT → reward model → online rounds → evaluate → register."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prefect import flow

from ratchet.components.recipes.check_data import check_model
from ratchet.flows.commands.options import Until
from ratchet.flows.parts import version
from ratchet.tasks.data.drift import watch_data, watch_results
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.cancelling import cancel_on_prefect_request
from ratchet.tasks.process.locks import IfRunning, file_lock, gpu_slots
from ratchet.tasks.registry.registration import model_of, register_run
from ratchet.tasks.remote.exchange import Exchange
from ratchet.tasks.remote.remote_stage import RemoteStage
from ratchet.tasks.stages import make
from ratchet.tasks.tracking.watchers import watched


@flow(name="post_training", flow_run_name="{recipe}", persist_result=False, validate_parameters=False)
def post_training(
    recipe: str, *, home: str = "out", overrides: list[str] | None = None, profile: str | None = None,
    until: Until = "register", if_running: IfRunning = "wait", gpus: int = 0, elsewhere: dict[str, str] | None = None,
    artifacts: str | None = None, display: Any = None, limit: int | None = None,
) -> dict[str, Any]:
    """Run a recipe to the end, or up to `until` (curate, train, evaluate, register). Finished stages are taken as they are.

    A run that another process is making is waited for or refused (`if_running`). What learns or samples here holds `gpus`
    slots of the Prefect server's limit `gpu`, stage by stage. `elsewhere` gives what a stage does to another deployment, which reads and
    writes products at the address `artifacts`. `limit` makes it a smoke test. Raises `BusyError` and whatever a stage raises.
    """
    pipeline = Pipeline.open(recipe, home=Path(home), overrides=overrides or (), profile=profile, limit=limit)
    pipeline.remote |= {does: RemoteStage(Exchange(artifacts or ""), deployment) for does, deployment in (elsewhere or {}).items()}
    with cancel_on_prefect_request(), file_lock(pipeline.run.path / "lock", f"run {pipeline.run.name}", if_running), watched(pipeline, display) as tracking:
        curate(pipeline)
        watch_data(pipeline)
        if until == "curate":
            return {"run": pipeline.run.name}
        learn(pipeline, gpus)
        for number in range(1, rounds(pipeline) + 1):
            online_round(pipeline, number, gpus)
        if until != "train" and "evaluate" in pipeline.stages:
            make_on_gpus(pipeline, "evaluate", gpus)
        if until in ("train", "evaluate"):
            return {"run": pipeline.run.name}
        watch_results(pipeline)
        registered = register_run(pipeline, tracking.run_id(wait_seconds=30))
        pipeline.run.record(postponed=registered.get("postponed"), champion=registered.get("champion"), registered={
            stage: f"{model_of(pipeline.recipe.register, stage)}:{number}" for stage, number in registered.get("versions", {}).items()})
        return {"run": pipeline.run.name, "registered": registered, "data": version(pipeline, Path.cwd())}


def curate(pipeline: Pipeline) -> None:
    """Fetch the models and the data, clean, split, and hold every data set against its expectations."""
    for name in [n for n in pipeline.stages if n.startswith("model_")]:
        make(pipeline, name)
    policy = pipeline.stages["model_policy"]
    if (made := pipeline.store.get(policy.name, policy.key)) and (config := made.path / "config.json").is_file():
        check_model(pipeline.recipe, json.loads(config.read_text()), "models.policy")
    for name in ("raw", "drafts", "curated"):
        make(pipeline, name)


def learn(pipeline: Pipeline, gpus: int = 0) -> None:
    """Everything that is trained before or beside the rounds."""
    for name, stage in pipeline.stages.items():
        if stage.does in ("demonstrate", "sft", "reward", "certify", "gold", "prepare_offline", "improve") or name in ("demonstrations", "preferences", "offline"):
            make_on_gpus(pipeline, name, gpus)


def rounds(pipeline: Pipeline) -> int:
    return max((stage.round or 0 for stage in pipeline.stages.values()), default=0)


@flow(name="online_round", flow_run_name="round-{number}", persist_result=False, validate_parameters=False)
def online_round(pipeline: Any, number: int, gpus: int = 0) -> None:
    """The current policy answers, the judges score, pairs are chosen, the policy learns from them."""
    for step in ("rollout", "annotate", "select", "optimise"):
        make_on_gpus(pipeline, f"{step}_{number}", gpus)


def make_on_gpus(pipeline: Pipeline, name: str, gpus: int) -> None:
    """Make a stage with slots and GPUs that are held only while it is made here. One made elsewhere takes its own there, and would wait
    for ever for those that its leader, or the leader of another run that waits likewise, kept meanwhile."""
    stage = pipeline.stages[name]
    here = stage.does not in pipeline.remote and pipeline.take(stage) is None
    with gpu_slots(gpus if here else 0) as pipeline.devices:
        make(pipeline, name)
