"""Stages as Prefect tasks. Skipping is decided by the store only; Prefect's result cache is off."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from ratchet.components.errors import RatchetError
from ratchet.components.types import Artifact
from ratchet.tasks.pipeline import Pipeline


def retryable(task: Any, task_run: Any, state: Any) -> bool:
    """Retry transient failures (a killed process, an unreachable server), never a bad recipe or a NaN."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, RatchetError) and error.retryable


@task(
    name="stage",
    task_run_name="{name}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=1,
    retry_delay_seconds=2,
    retry_condition_fn=retryable,
)
def stage(pipeline: Any, name: str) -> Artifact:
    return pipeline.make(name)


def make(pipeline: Pipeline, name: str) -> Artifact:
    """Run one stage as a task named after its kind."""
    return stage.with_options(name=pipeline.stages[name].does)(pipeline, name)
