"""Compute and apply the changes that bring a Prefect server into the state described by
`flows/deployments.yaml` (idempotent).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags, FlowFilter, FlowFilterName
from prefect.client.schemas.objects import ConcurrencyOptions
from prefect.client.schemas.schedules import CronSchedule
from prefect.utilities.callables import parameter_schema
from prefect.utilities.templating import PlaceholderType, find_placeholders

from ratchet.components.errors import RecipeError
from ratchet.flows.alerts import alert_change, or_none
from ratchet.flows.deployments import MACHINES, Deployment, Place, Plan, StagePlace, WorkPool, deployment_of
from ratchet.flows.one_machine import one_machine
from ratchet.flows.one_stage import one_stage
from ratchet.flows.post_training import post_training
from ratchet.tasks.process.locks import REGISTRY

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

OURS = "ratchet"  # tag of the deployments managed by this file
MAKE_SECRET = (
    'python -c "from getpass import getpass; from prefect.blocks.system import Secret; '
    "Secret(value=getpass()).save('{}')\""
)  # reads the value from the terminal, so that it is in no shell history


@dataclass(frozen=True)
class Change:
    """One difference between the file and the server. `carry_out` applies it, None if they are equal."""

    kind: Literal["work pool", "slots", "deployment", "alert"]
    name: str
    what: Literal["create", "update", "keep", "remove"]
    differs: Sequence[str] = ()  # "schedules: [...] -> [...]"
    carry_out: Callable[[], object] | None = None


def changes(
    plan: Plan, templates: Mapping[str, Any], client: SyncPrefectClient, workspace: Path
) -> list[Change]:
    """Compare all work pools, concurrency limits (including the registry's limit of 1), deployments and
    alerts of the plan with the server, in the order in which to apply them; last, deployments tagged
    `ratchet` that the file no longer contains.

    `client` is Prefect's synchronous client, `workspace` the working directory of process workers.
    `RecipeError` if a pool has another type on the server (recreating it would delete its queued runs), or a
    run would refer to a block that is missing on the server.
    """
    _check_blocks(plan, templates, client)
    found = [_pool(name, pool, templates[name], client) for name, pool in plan.work_pools.items()]
    for name, limit in {**plan.slots, REGISTRY: 1}.items():
        before = _attributes(or_none(client.read_global_concurrency_limit_by_name, name), ["limit"])
        set_limit = partial(client.upsert_global_concurrency_limit_by_name, name, limit)
        found.append(_change("slots", name, before, {"limit": limit}, set_limit))
    for deployment in plan.deployments:
        found += [_further(deployment, key, plan, client, workspace) for key in deployment.further]
        found.append(_deployment(deployment, plan, client, workspace))
    found += [_change("alert", name, *alert_change(name, one, client)) for name, one in plan.alerts.items()]
    managed = client.read_deployments(
        flow_filter=FlowFilter(
            name=FlowFilterName(any_=[post_training.name, one_stage.name, one_machine.name])
        ),
        deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=[OURS])),
    )
    return found + [
        Change("deployment", one.name, "remove", (), partial(client.delete_deployment, one.id))
        for one in managed
        if one.name not in plan.names
    ]


def _check_blocks(plan: Plan, templates: Mapping[str, Any], client: SyncPrefectClient) -> None:
    """`RecipeError` for a missing block, which Prefect resolves only when a run starts, and crashes."""
    places = [place for one in plan.deployments for place in (one.work_pool, *one.further.values())]
    for place in places:
        for slug, name in sorted(_blocks(templates[place.name], place.job_variables)):
            # False: without its secrets
            if name and or_none(client.read_block_document_by_name, name, slug, False) is not None:
                continue
            make = MAKE_SECRET.format(name) if slug == "secret" else f"prefect block create {slug}"
            raise RecipeError(
                f"runs in work pool {place.name!r} refer to the {slug} block {name!r}, which does not exist "
                f"on the Prefect server; make it with: {make}"
            )


def _blocks(template: Mapping[str, Any], job_variables: Mapping[str, Any]) -> set[tuple[str, str]]:
    """(type, name) of a run's blocks: those of the template's defaults, overridden by the job variables."""
    properties = template["variables"]["properties"]
    defaults = {key: one["default"] for key, one in properties.items() if "default" in one}
    dotted = {key[4:]: value for key, value in job_variables.items() if key.startswith("env.")}
    env = dict[str, Any]()
    for part in (defaults.get("env"), dotted, job_variables.get("env")):  # the later override the earlier
        env |= part if isinstance(part, Mapping) else {}
    values = {**defaults, **job_variables, "env": env}
    names = [
        (*one.name.split("."), "")  # prefect.blocks.TYPE.NAME[.KEY]
        for one in find_placeholders([template["job_configuration"], values])
        if one.type is PlaceholderType.BLOCK_DOCUMENT
    ]
    return {(slug, name) for _, _, slug, name, *_ in names}


def _pool(name: str, pool: WorkPool, template: Mapping[str, Any], client: SyncPrefectClient) -> Change:
    wanted = {
        "description": pool.description,
        "base_job_template": template,
        "concurrency_limit": pool.concurrency_limit,
    }
    known = or_none(client.read_work_pool, name)
    if known is not None and known.type != pool.type:
        raise RecipeError(
            f"work pool {name!r} is of type {known.type} on the server, {pool.type} in the file; give it "
            "another name"
        )
    carry_out = (
        partial(client.create_work_pool, WorkPoolCreate(name=name, type=pool.type, **wanted))
        if known is None
        else partial(client.update_work_pool, name, WorkPoolUpdate(**wanted))
    )
    return _change("work pool", name, _attributes(known, wanted), wanted, carry_out)


def _further(
    deployment: Deployment, key: str, plan: Plan, client: SyncPrefectClient, workspace: Path
) -> Change:
    """The deployment for remote stages of one kind, or for the further machines of stages; no concurrency
    limit besides the pool's.
    """
    place, parameters = deployment.further[key], dict[str, Any]()
    flow, description = one_machine, f"Further machines of the stages of {deployment.name}."
    if isinstance(place, StagePlace):
        flow, description = one_stage, f"Stages of {deployment.name} that do `{key}`."
        parameters = {"home": place.home, "machines": _machines(deployment)}
    wanted = {
        "description": description,
        "tags": [OURS],
        "parameters": {**parameters, "gpus": place.gpus},
        **_settings(flow, place, place.gpus, plan, workspace),
    }
    return _of_flow(flow, deployment_of(deployment, key), wanted, client)


def _machines(deployment: Deployment) -> str | None:
    return f"{one_machine.name}/{deployment_of(deployment, MACHINES)}" if deployment.machines else None


def _deployment(deployment: Deployment, plan: Plan, client: SyncPrefectClient, workspace: Path) -> Change:
    """The deployment of a recipe. It makes one run at a time."""
    remote = {does: f"{one_stage.name}/{deployment_of(deployment, does)}" for does in deployment.stages}
    wanted = {
        "description": deployment.description,
        "tags": sorted({OURS, *deployment.tags}),
        "parameters": {
            "recipe": deployment.recipe,
            "home": deployment.home,
            "overrides": list(deployment.overrides),
            "profile": deployment.profile,
            "until": deployment.until,
            "if_running": deployment.if_running,
            "gpus": deployment.gpus,
            "artifacts": deployment.artifacts,
            "remote_stages": remote,
            "machines": _machines(deployment),
        },
        **_settings(post_training, deployment.work_pool, deployment.gpus, plan, workspace),
    }
    if deployment.paused is not None:
        wanted["paused"] = deployment.paused
    schedules = [
        DeploymentScheduleCreate(
            active=one.active, schedule=CronSchedule(cron=one.cron, timezone=one.timezone)
        )
        for one in deployment.schedules
    ]
    strategy = {"wait": "ENQUEUE", "refuse": "CANCEL_NEW"}[deployment.if_running]
    return _of_flow(post_training, deployment.name, wanted, client, schedules, strategy)


def _settings(flow: Any, place: Place, gpus: int, plan: Plan, workspace: Path) -> dict[str, Any]:
    """Entry point, work pool, queue and job variables of a deployment. Process workers see all GPUs of their
    machine. Docker's `count: 1` would give every container the first GPU, so containers get all and each
    stage locks its own (`tasks/process/locks.py`). Kubernetes assigns them exclusively.
    """
    of_pool: dict[str, Any] = {
        "process": {"working_dir": str(workspace)},
        "docker": {"device_requests": [{"count": -1, "capabilities": [["gpu"]]}]} if gpus else {},
        "kubernetes": {"gpus": gpus} if gpus else {},
    }
    return {
        "entrypoint": f"ratchet.flows.{flow.name}.{flow.name}",
        "parameter_openapi_schema": parameter_schema(flow).model_dump_for_openapi(),
        "enforce_parameter_schema": True,
        "work_pool_name": place.name,
        "work_queue_name": place.work_queue_name or "default",
        "job_variables": {**of_pool[plan.work_pools[place.name].type], **place.job_variables},
    }


def _of_flow(
    flow: Any,
    name: str,
    wanted: Mapping[str, Any],
    client: SyncPrefectClient,
    schedules: Sequence[Any] = (),
    if_running: Any = None,
) -> Change:
    """The change of a flow's deployment. With `if_running`, a collision strategy, it has `schedules` and
    makes one run at a time.
    """
    known = or_none(client.read_deployment_by_name, f"{flow.name}/{name}")
    before, after, options = _attributes(known, wanted), dict(wanted), {}
    if if_running:
        after |= {"schedules": _readable(schedules), "if_running": if_running}
        collisions = ConcurrencyOptions(collision_strategy=if_running)
        options = {"schedules": schedules, "concurrency_limit": 1, "concurrency_options": collisions}
    if if_running and before is not None:
        limit, chosen = known.global_concurrency_limit, known.concurrency_options
        one_at_a_time = limit and limit.limit == 1 and chosen
        before["schedules"] = _readable(known.schedules)
        before["if_running"] = chosen.collision_strategy.value if one_at_a_time else None

    def carry_out() -> object:
        flow_id = client.create_flow_from_name(flow.name)
        return client.create_deployment(flow_id=flow_id, name=name, **wanted, **options)

    return _change("deployment", name, before, after, carry_out)


def _readable(schedules: Sequence[Any]) -> list[str]:
    """Schedules as readable text, sorted. One that a person added on Prefect's page may have no cron."""
    return sorted(
        f"{getattr(one.schedule, 'cron', one.schedule)} {one.schedule.timezone}"
        f"{'' if one.active else ' (off)'}"
        for one in schedules
    )


def _attributes(known: Any, keys: Iterable[str]) -> dict[str, Any] | None:
    """Attributes of an object on the server; None if there is no such object. Tags have no order."""
    if known is None:
        return None
    return {key: sorted(known.tags) if key == "tags" else getattr(known, key) for key in keys}


def _change(
    kind: Any,
    name: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any],
    carry_out: Callable[[], object],
) -> Change:
    if before is None:
        return Change(kind, name, "create", (), carry_out)
    differs = [
        key
        if isinstance(after[key], Mapping) and len(str(after[key])) > 200
        else f"{key}: {before[key]!r} -> {after[key]!r}"
        for key in after
        if before[key] != after[key]
    ]
    return Change(kind, name, "update" if differs else "keep", differs, carry_out if differs else None)
