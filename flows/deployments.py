"""Which runs happen when, where and with how many GPUs: `flows/deployments.yaml`, read strictly.

The file keeps the words of prefect.yaml (`deployments`, `work_pool`, `schedules`, `job_variables`, `paused`) and puts a
recipe in place of entrypoint and parameters. How a Prefect server is brought to what it says: `flows/changes.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.recipes.conform import conform, record
from ratchet.components.recipes.plan import plan as stages_of
from ratchet.components.recipes.ranges import Bool, Count, Natural
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.yaml_files import read_yaml
from ratchet.flows.alerts import Alert
from ratchet.flows.alerts import check as check_alert
from ratchet.flows.commands.options import Until
from ratchet.tasks.process.locks import REGISTRY, IfRunning
from ratchet.tasks.remote.exchange import check as check_address

SCHEMA = 1


@record
class WorkPool:
    """Where runs are started: by a `process` worker on its own machine, as Docker containers or as Kubernetes jobs.

    `base_job_template` is a JSON file, relative to this one; `concurrency_limit` bounds the runs in the pool at once.
    """

    type: Literal["process", "docker", "kubernetes"]
    base_job_template: str
    concurrency_limit: Count | None = None
    description: str = ""


@record
class Schedule:
    """`cron` or `interval` (seconds), in a timezone of the tz database."""

    cron: str | None = None
    interval: Count | None = None
    timezone: str = "UTC"
    active: Bool = True


@record
class Place:
    """The pool a deployment runs in, and what differs from the pool's template."""

    name: str
    work_queue_name: str | None = None
    job_variables: Mapping[str, Any] = field(default_factory=dict)


@record
class StagePlace(Place):
    """The pool that stages of one kind are made in, with the GPUs they take there. `home` is the folder of its worker."""

    gpus: Natural = 0
    home: str = "out"


@record
class Deployment:
    """One recipe on a schedule. `gpus` counts slots of the limit `gpu` and the GPUs of its machine that a stage then holds.

    `stages` names, by what a stage does (`sft`, `rollout`, ...), those that are made in another pool than the flow's; they
    exchange products at the address `artifacts`, a folder or an object store that every worker reaches.
    """

    name: str
    recipe: str
    work_pool: Place
    profile: str | None = None
    overrides: Sequence[str] = ()
    home: str = "out"
    until: Until = "register"
    schedules: Sequence[Schedule] = ()
    if_running: IfRunning = "wait"
    gpus: Natural = 0
    stages: Mapping[str, StagePlace] = field(default_factory=dict)
    artifacts: str | None = None
    description: str = ""
    tags: Sequence[str] = ()
    paused: Bool | None = None  # null leaves what somebody chose on the page


@record
class Plan:
    """The file as a whole. `slots` are global concurrency limits: how many GPUs all runs together may hold."""

    schema: int
    deployments: Sequence[Deployment]
    work_pools: Mapping[str, WorkPool]
    slots: Mapping[str, Natural] = field(default_factory=dict)
    alerts: Mapping[str, Alert] = field(default_factory=dict)


def read(path: Path) -> tuple[Plan, dict[str, Any]]:
    """The checked file, and the base job template of each pool. Every mistake is a `RecipeError` that says where it stands
    and the nearest right name."""
    raw = read_yaml(path, f"no file {path}; run this in the checkout, or name the file with --file")
    if not isinstance(raw, Mapping) or raw.get("schema") != SCHEMA:
        raise RecipeError(f"{path}: expected a mapping that begins with `schema: {SCHEMA}` and holds deployments, work_pools and slots")
    try:
        plan = conform(Plan, raw, "")
        if REGISTRY in plan.slots:
            raise RecipeError(f"slots.{REGISTRY}: this limit is always 1, so that registrations wait for each other; leave it out")
        names = [name for one in plan.deployments for name in (one.name, *(stage_deployment(one, does) for does in one.stages))]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise RecipeError(f"deployments: the name {min(repeated)!r} stands twice")
        templates = {name: _template(path.parent, name, pool) for name, pool in plan.work_pools.items()}
        for one in plan.deployments:
            _check(one, plan, templates)
        for name, alert in plan.alerts.items():
            check_alert(name, alert)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from error
    return plan, templates


def _check(one: Deployment, plan: Plan, templates: Mapping[str, Any]) -> None:
    where = f"deployment {one.name!r}"
    if "/" in one.name:
        raise RecipeError(f"{where}: a name has no '/'")
    _check_place(one.work_pool, one.gpus, f"{where}: work_pool", plan, templates)
    _check_home(one.home, plan.work_pools[one.work_pool.name], where)
    for number, schedule in enumerate(one.schedules):
        _check_schedule(schedule, f"{where}: schedules[{number}]")
    try:
        does = {stage.does for stage in stages_of(*load(one.recipe, overrides=one.overrides, profile=one.profile)).values()}
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error
    for name, place in one.stages.items():
        at = f"{where}: stages.{name}"
        if name not in does:
            raise RecipeError(f"{at}: no stage of {one.recipe} does {name!r}{nearest(name, does)}")
        _check_place(place, place.gpus, at, plan, templates)
        _check_home(place.home, plan.work_pools[place.name], at)
        if place.name == one.work_pool.name:
            raise RecipeError(f"{at}: {place.name!r} is the flow's own pool, where it would wait for a place that the flow holds; leave it out")
    if one.stages:
        if one.artifacts is None:
            raise RecipeError(f"{where}: stages in other pools need `artifacts`, the address of a folder or object store that all of them reach")
        try:
            check_address(one.artifacts)
        except RecipeError as error:
            raise RecipeError(f"{where}: {error}") from error


def _check_place(place: Place, gpus: int, where: str, plan: Plan, templates: Mapping[str, Any]) -> None:
    if place.name not in plan.work_pools:
        raise RecipeError(f"{where}: no work pool named {place.name!r}{nearest(place.name, plan.work_pools)}")
    variables = templates[place.name]["variables"]["properties"]
    for key in place.job_variables:
        if key.split(".")[0] not in variables:
            raise RecipeError(f"{where}.job_variables: unknown key {key!r}{nearest(key, variables)}")
    if gpus > plan.slots.get("gpu", 0):
        raise RecipeError(f"{where}: asks for {gpus} GPUs, slots.gpu is {plan.slots.get('gpu', 0)}")


def _check_home(home: str, pool: WorkPool, where: str) -> None:
    """What a run can be resumed from lies there: its checkpoints and products."""
    if pool.type != "process" and not Path(home).is_absolute():
        raise RecipeError(f"{where}: home {home!r} would be lost with its container; name the mounted folder, such as /data")


def _check_schedule(schedule: Schedule, where: str) -> None:
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    if (schedule.cron is None) == (schedule.interval is None):
        raise RecipeError(f"{where}: give cron or interval (seconds), one of them")
    try:
        CronSchedule(cron=schedule.cron or "0 0 * * *", timezone=schedule.timezone)
    except ValidationError as error:
        if error.errors()[0]["loc"] == ("timezone",):
            from zoneinfo import available_timezones

            hint = nearest(schedule.timezone, available_timezones()).partition("; known")[0]  # not all six hundred
            raise RecipeError(f"{where}: timezone {schedule.timezone!r} is not valid{hint}") from None
        raise RecipeError(f"{where}: cron {schedule.cron!r} is not valid; expected five fields, such as 0 2 * * *") from None


def _template(folder: Path, name: str, pool: WorkPool) -> dict[str, Any]:
    path, where = folder / pool.base_job_template, f"work_pools.{name}.base_job_template"
    try:
        template = json.loads(path.read_text())
    except FileNotFoundError:
        raise RecipeError(f"{where}: no file {path}") from None
    except json.JSONDecodeError as error:
        raise RecipeError(f"{where}: {path} is not JSON: {error}") from None
    if set(template) != {"job_configuration", "variables"}:
        raise RecipeError(f"{where}: {path} needs job_configuration and variables, it has {', '.join(template)}")
    return template


def stage_deployment(one: Deployment, does: str) -> str:
    """The name of the deployment that makes a deployment's stages of one kind."""
    return f"{one.name}.{does}"
