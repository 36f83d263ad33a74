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
    display: Any = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Run a recipe to `until` (curate, train, evaluate, register). Finished stages are reused.

    If another process is executing the same run, wait for it or fail (`if_running`). Stages that train or
    sample on this machine hold `gpus` slots of the Prefect concurrency limit `gpu` while they run.
    `remote_stages` maps kinds of stages to the deployments that run them; those exchange outputs through the
    address `artifacts`. `limit` makes it a smoke test. Raises `BusyError` and the errors of the stages.
    """
    pipeline = Pipeline.open(recipe, home=Path(home), overrides=overrides or (), profile=profile, limit=limit)
    pipeline.remote |= {
        does: RemoteStage(Exchange(artifacts or ""), deployment)
        for does, deployment in (remote_stages or {}).items()
    }
    with (
        cancel_on_prefect_request(),
        file_lock(pipeline.run.path / "lock", f"run {pipeline.run.name}", if_running),
        watched(pipeline, display) as tracking,
    ):
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
        versions = {
            stage: f"{model_of(register, stage)}:{number}"
            for stage, number in registered.get("versions", {}).items()
            if (register := pipeline.recipe.register) is not None
        }
        pipeline.run.record(
            postponed=registered.get("postponed"),
            champion=registered.get("champion"),
            registered=versions,
        )
        return {"run": pipeline.run.name, "registered": registered, "data": version(pipeline, Path.cwd())}


def curate(pipeline: Pipeline) -> None:
    """Download models and data; clean, split and validate the data."""
    for name in [n for n in pipeline.stages if n.startswith("model_")]:
        make(pipeline, name)
    policy = pipeline.stages["model_policy"]
    if (made := pipeline.store.get(policy.name, policy.key)) and (
        config := made.path / "config.json"
    ).is_file():
        check_model(pipeline.recipe, json.loads(config.read_text()), "models.policy")
    for name in ("raw", "drafts", "curated"):
        make(pipeline, name)


def learn(pipeline: Pipeline, gpus: int = 0) -> None:
    """Run the training stages outside the online rounds: SFT, reward models, offline preferences."""
    for name, stage in pipeline.stages.items():
        if stage.does in (
            "demonstrate",
            "sft",
            "reward",
            "certify",
            "gold",
            "prepare_offline",
            "improve",
        ) or name in ("demonstrations", "preferences", "offline"):
            make_on_gpus(pipeline, name, gpus)


def rounds(pipeline: Pipeline) -> int:
    return max((stage.round or 0 for stage in pipeline.stages.values()), default=0)


@flow(name="online_round", flow_run_name="round-{number}", persist_result=False, validate_parameters=False)
def online_round(pipeline: Any, number: int, gpus: int = 0) -> None:
    """One online round: sample answers, score them, select pairs or groups, train the policy."""
    for step in ("rollout", "annotate", "select", "optimise"):
        make_on_gpus(pipeline, f"{step}_{number}", gpus)


def make_on_gpus(pipeline: Pipeline, name: str, gpus: int) -> None:
    """Run a stage, holding GPU slots only while it runs on this machine. A remote stage acquires its own
    slots; slots held here meanwhile could deadlock two runs that both wait for a remote stage.
    """
    stage = pipeline.stages[name]
    here = stage.does not in pipeline.remote and pipeline.take(stage) is None
    with gpu_slots(gpus if here else 0) as pipeline.devices:
        make(pipeline, name)
