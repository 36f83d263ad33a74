"""Registration after evaluation: checkpoints become versions, the final one becomes candidate and, if
allowed, champion.
"""

from __future__ import annotations

import json
from typing import Any

from ratchet.components.errors import ServiceError, redacted
from ratchet.components.recipes.arms import other_policy
from ratchet.components.recipes.reward_models import not_required
from ratchet.components.recipes.schema import Recipe
from ratchet.components.stages.fetch import REGISTRY
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.locks import registry_lock
from ratchet.tasks.registry.lineage import write_lineage
from ratchet.tasks.registry.promotion import with_evidence
from ratchet.tasks.registry.registry import promote, register
from ratchet.tasks.tracking.outcome import stage_metrics
from ratchet.tasks.tracking.server import tracking_uri


def register_run(pipeline: Pipeline, run_id: str | None) -> dict[str, Any]:
    """Register the run's checkpoints, if it trains any, with their lineage; set `candidate`, and `champion`
    if the gates passed, the evaluation is of this policy, the reward models it was optimised against had to
    be better than chance, and the model is shown to be better than the current champion. `run_id`: the run's
    MLflow id, None if it is not uploaded.

    Files of intermediate checkpoints stay in the store; only the final one is copied to MLflow. If the
    tracking server is unreachable, the run reports it and registers when run again.
    """
    recipe = pipeline.recipe
    if recipe.register is None or not checkpoints(pipeline):
        return {}
    home = pipeline.store.home
    if run_id is None:  # otherwise the version would never be linked to its run
        why = f"the run is not uploaded to {tracking_uri(home)}"
        again = "check the server or MLFLOW_TRACKING_URI and run again, nothing is lost"
        return {"postponed": redacted(f"{why}; {again}")}
    final, report = final_stage(pipeline), {}
    if "evaluate" in pipeline.stages:
        report = json.loads((pipeline.artifact("evaluate").path / "results.json").read_text())
    verdict = report.get("verdict", {"passed": False, "reasons": ["the recipe has no evaluation"]})
    if refused := _why_refused(recipe):
        verdict = {**verdict, "passed": False, "reasons": [*verdict["reasons"], *refused]}
    evaluated = {} if other_policy(recipe) else report.get("metrics", {})
    versions: dict[str, str] = {}
    try:
        with registry_lock(home):
            for name in checkpoints(pipeline):
                artifact = pipeline.artifact(name)
                numbers = stage_metrics(pipeline.stages[name].does, artifact.meta)
                metrics = {key: value for key, value in numbers.items() if "/" not in key}
                parents = {
                    p: registered_source(pipeline, p) or f"{model_of(pipeline, p)}:{versions[p]}"
                    for p in trained_from(pipeline, name)
                }
                versions[name] = register(
                    artifact.path,
                    model_of(pipeline, name),
                    lineage=write_lineage(pipeline, name),
                    metrics={**metrics, **(evaluated if name == final else {})},
                    parents=parents,
                    run_id=run_id,
                    external=name != final,
                    home=home,
                )
            model, rule = model_of(pipeline, final), recipe.register.champion
            verdict = with_evidence(model, versions[final], verdict, rule=rule, home=home)
            champion = promote(model, versions[final], verdict, home=home)
    except ServiceError as error:
        return {"postponed": str(error)}
    pipeline.run.record(versions=versions, verdict=verdict)
    return {"versions": versions, "champion": champion}


def _why_refused(recipe: Recipe) -> list[str]:
    """Why a policy of this recipe cannot become champion, whatever its gates say."""
    reasons = []
    if names := not_required(recipe):
        reasons.append(
            f"{' and '.join(names)} was optimised against without a required accuracy "
            "(`certificate.min_accuracy: null`)"
        )
    if arm := other_policy(recipe):
        reasons.append(f"the evaluation is of another policy (`evaluate.arms.{arm}`)")
    return reasons


def checkpoints(pipeline: Pipeline) -> list[str]:
    """All stages with trained weights."""
    return [
        n
        for n, s in pipeline.stages.items()
        if s.kind == "weights" and not n.startswith("model_") and n != "gold"
    ]


def model_of(pipeline: Pipeline, name: str) -> str:
    """The registered model of a checkpoint."""
    register = pipeline.recipe.register
    assert register is not None, "a recipe without it registers nothing"
    return f"{register.model}-reward" if pipeline.stages[name].does == "reward" else register.model


def trained_from(pipeline: Pipeline, name: str) -> list[str]:
    """The checkpoints that a stage depends on, through its inputs and their data, in order; including
    registered models used as sources.
    """
    known = [n for n in pipeline.stages if registered_source(pipeline, n)] + checkpoints(pipeline)
    found, queue = set[str](), [name]
    for stage in queue:
        for one in pipeline.stages[stage].inputs.values():
            if one in known:
                found.add(one)
            elif one not in queue:
                queue.append(one)
    return [checkpoint for checkpoint in known if checkpoint in found]


def registered_source(pipeline: Pipeline, name: str) -> str:
    """`name:version` if a stage downloads a registered model, else empty."""
    source = str(pipeline.stages[name].options.get("source", "")) if name.startswith("model_") else ""
    return source.removeprefix(REGISTRY).replace("/", ":") if source.startswith(REGISTRY) else ""


def final_stage(pipeline: Pipeline) -> str:
    """The stage with the final weights: the last policy that advanced, else the last checkpoint. The pipeline
    trains at least one.
    """
    names = checkpoints(pipeline)
    return ([name for name in names if pipeline.stages[name].policy] or names)[-1]
