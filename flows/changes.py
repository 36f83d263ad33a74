"""Compute and apply the changes that bring a Prefect server into the state described by
`flows/deployments.yaml` (idempotent).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ratchet.components.errors import RecipeError
from ratchet.flows.alerts import alert_change, or_none
from ratchet.flows.deployment_settings import entrypoint, pool_settings, prefect_schedule, readable
from ratchet.flows.deployments import Deployment, Plan, WorkPool, stage_deployment
from ratchet.tasks.process.locks import REGISTRY

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

OURS = "ratchet"  # tag of the deployments managed by this file
FLOW, STAGE_FLOW = "post_training", "one_stage"
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
    carry_out: Callable[[], Any] | None = None


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
    all_changes = [_pool(name, pool, templates[name], client) for name, pool in plan.work_pools.items()]
    all_changes += [_slots(name, limit, client) for name, limit in {**plan.slots, REGISTRY: 1}.items()]
    for deployment in plan.deployments:
        all_changes += [
            _stage(deployment, does, plan.work_pools[place.name].type, client, workspace)
            for does, place in deployment.stages.items()
        ]
        all_changes.append(
            _deployment(deployment, plan.work_pools[deployment.work_pool.name].type, client, workspace)
        )
    all_changes += [alert_change(name, alert, client, _change) for name, alert in plan.alerts.items()]
    for managed in _managed_deployments(client):
        if managed.name not in plan.names:
            all_changes.append(
                Change(
                    "deployment", managed.name, "remove", (), lambda i=managed.id: client.delete_deployment(i)
                )
            )
    return all_changes


def _check_blocks(plan: Plan, templates: Mapping[str, Any], client: SyncPrefectClient) -> None:
    """`RecipeError` for a missing block, which Prefect resolves only when a run starts, and crashes."""
    for place in (
        place
        for deployment in plan.deployments
        for place in (deployment.work_pool, *deployment.stages.values())
    ):
        for slug, name in sorted(_blocks(templates[place.name], place.job_variables)):
            if (
                not name or or_none(client.read_block_document_by_name, name, slug, False) is None
            ):  # False: without its secrets
                raise RecipeError(
                    f"runs in work pool {place.name!r} refer to the {slug} block {name!r}, which does not "
                    "exist on the Prefect server; "
                    "make it with: "
                    f"{MAKE_SECRET.format(name) if slug == 'secret' else f'prefect block create {slug}'}"
                )


def _blocks(template: Mapping[str, Any], job_variables: Mapping[str, Any]) -> set[tuple[str, str]]:
    """(type, name) of a run's blocks: the template's defaults, overridden by the job variables `given`."""
    from prefect.utilities.templating import PlaceholderType, find_placeholders

    defaults = {
        key: one["default"] for key, one in template["variables"]["properties"].items() if "default" in one
    }
    dotted = {
        key.removeprefix("env."): value for key, value in job_variables.items() if key.startswith("env.")
    }
    merged = (
        part for part in (defaults.get("env"), dotted, job_variables.get("env")) if isinstance(part, Mapping)
    )  # later mappings override earlier ones
    env = {key: value for part in merged for key, value in part.items()}
    placeholders = find_placeholders(
        [template["job_configuration"], {**defaults, **job_variables, "env": env}]
    )
    parts = [
        (*placeholder.name.split("."), "")
        for placeholder in placeholders
        if placeholder.type is PlaceholderType.BLOCK_DOCUMENT
    ]  # prefect.blocks.TYPE.NAME[.KEY]
    return {(slug, name) for _, _, slug, name, *_ in parts}


def _pool(name: str, pool: WorkPool, template: Mapping[str, Any], client: SyncPrefectClient) -> Change:
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate

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
    return _change(
        "work pool",
        name,
        _attributes(known, wanted),
        wanted,
        lambda: (
            client.create_work_pool(WorkPoolCreate(name=name, type=pool.type, **wanted))
            if known is None
            else client.update_work_pool(name, WorkPoolUpdate(**wanted))
        ),
    )


def _slots(name: str, limit: int, client: SyncPrefectClient) -> Change:
    known = or_none(client.read_global_concurrency_limit_by_name, name)
    return _change(
        "slots",
        name,
        _attributes(known, ["limit"]),
        {"limit": limit},
        lambda: client.upsert_global_concurrency_limit_by_name(name, limit),
    )


def _stage(
    deployment: Deployment, does: str, pool: str, client: SyncPrefectClient, workspace: Path
) -> Change:
    """The deployment for remote stages of one kind; no concurrency limit besides the pool's."""
    from ratchet.flows.one_stage import one_stage

    place = deployment.stages[does]
    wanted = {
        "description": f"Stages of {deployment.name} that do `{does}`.",
        "tags": [OURS],
        "parameters": {"home": place.home, "gpus": place.gpus},
        **entrypoint(one_stage, STAGE_FLOW),
        **pool_settings(place, pool, place.gpus, workspace),
    }
    return _of_flow(STAGE_FLOW, stage_deployment(deployment, does), wanted, client)


def _deployment(deployment: Deployment, pool: str, client: SyncPrefectClient, workspace: Path) -> Change:
    from ratchet.flows.post_training import post_training

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
            "remote_stages": {
                does: f"{STAGE_FLOW}/{stage_deployment(deployment, does)}" for does in deployment.stages
            },
        },
        **entrypoint(post_training, FLOW),
        **pool_settings(deployment.work_pool, pool, deployment.gpus, workspace),
    }
    if deployment.paused is not None:
        wanted["paused"] = deployment.paused
    schedules = [prefect_schedule(schedule) for schedule in deployment.schedules]
    strategy = {"wait": "ENQUEUE", "refuse": "CANCEL_NEW"}[deployment.if_running]
    return _of_flow(FLOW, deployment.name, wanted, client, schedules, strategy)


def _of_flow(
    flow: str,
    name: str,
    wanted: Mapping[str, Any],
    client: SyncPrefectClient,
    schedules: Sequence[Any] = (),
    if_running: Any = None,
) -> Change:
    """The change of a flow's deployment. With `if_running`, a collision strategy, it has `schedules` and
    makes one run at a time.
    """
    from prefect.client.schemas.objects import ConcurrencyOptions

    known = or_none(client.read_deployment_by_name, f"{flow}/{name}")
    before, after, options = _attributes(known, wanted), dict(wanted), {}
    if if_running:
        after |= {"schedules": readable(schedules), "if_running": if_running}
        options = {
            "schedules": schedules,
            "concurrency_limit": 1,
            "concurrency_options": ConcurrencyOptions(collision_strategy=if_running),
        }
    if if_running and before is not None:
        limit, chosen = known.global_concurrency_limit, known.concurrency_options
        before["schedules"] = readable(known.schedules)
        before["if_running"] = (
            chosen.collision_strategy.value if limit and limit.limit == 1 and chosen else None
        )
    return _change(
        "deployment",
        name,
        before,
        after,
        lambda: client.create_deployment(
            flow_id=client.create_flow_from_name(flow), name=name, **wanted, **options
        ),
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
    carry_out: Callable[[], Any],
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


def _managed_deployments(client: SyncPrefectClient) -> list[Any]:
    from prefect.client.schemas.filters import (
        DeploymentFilter,
        DeploymentFilterTags,
        FlowFilter,
        FlowFilterName,
    )

    return client.read_deployments(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW, STAGE_FLOW])),
        deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=[OURS])),
    )
