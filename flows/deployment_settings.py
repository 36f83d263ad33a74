"""Settings of a deployment as Prefect expects them: entry point, schedules, work pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.flows.deployments import Place, Schedule


def prefect_schedule(schedule: Schedule) -> Any:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    return DeploymentScheduleCreate(
        active=schedule.active, schedule=CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
    )


def entrypoint(flow: Any, name: str) -> dict[str, Any]:
    from prefect.utilities.callables import parameter_schema

    return {
        "entrypoint": f"ratchet.flows.{name}.{name}",
        "parameter_openapi_schema": parameter_schema(flow).model_dump_for_openapi(),
        "enforce_parameter_schema": True,
    }


def pool_settings(place: Place, pool: str, gpus: int, workspace: Path) -> dict[str, Any]:
    """Work pool, queue and job variables of a deployment; `pool` is the pool's type."""
    return {
        "work_pool_name": place.name,
        "work_queue_name": place.work_queue_name or "default",
        "job_variables": {
            **_gpu_variables(pool, gpus),
            **({"working_dir": str(workspace)} if pool == "process" else {}),
            **place.job_variables,
        },
    }


def _gpu_variables(pool: str, count: int) -> dict[str, Any]:
    """Job variables that request GPUs. Process workers see all GPUs of their machine. Docker's `count: 1`
    would give every container the first GPU, so containers get all and each stage locks its own
    (`tasks/process/locks.py`). Kubernetes assigns them exclusively.
    """
    if not count or pool == "process":
        return {}
    return (
        {"gpus": count}
        if pool == "kubernetes"
        else {"device_requests": [{"count": -1, "capabilities": [["gpu"]]}]}
    )


def readable(schedules: Sequence[Any]) -> list[str]:
    """Schedules as readable text, sorted. One that a person added on Prefect's page may have no cron."""
    return sorted(
        f"{getattr(one.schedule, 'cron', one.schedule)} {one.schedule.timezone}"
        f"{'' if one.active else ' (off)'}"
        for one in schedules
    )
