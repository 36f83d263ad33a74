"""Schema and validation of `flows/deployments.yaml`: which recipes run when, in which work pool, and with how
many GPUs.

The keys are those of prefect.yaml (`deployments`, `work_pool`, `schedules`, `job_variables`, `paused`), with
a recipe instead of entrypoint and parameters. Applying the file to a server: `flows/changes.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, get_args
from zoneinfo import available_timezones

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.recipes.conform import conform, record
from ratchet.components.recipes.plan import plan as stages_of
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.ranges import Bool, Count, Natural
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.yaml_files import read_yaml
from ratchet.components.stages import WAITING
from ratchet.flows.commands.options import Until
from ratchet.tasks.process.locks import REGISTRY, IfRunning
from ratchet.tasks.remote.exchange import check as check_address

SCHEMA, MACHINES = 1, "machines"
When = Literal["failed", "late", "drift", "health", "cancelled", "labels"]


@record
class WorkPool:
    """A Prefect work pool: `process` workers, Docker containers or Kubernetes jobs.

    `base_job_template`: JSON file, relative to the deployment file. `concurrency_limit`: maximum number of
    concurrent runs.
    """

    type: Literal["process", "docker", "kubernetes"]
    base_job_template: str
    concurrency_limit: Count | None = None
    description: str = ""


@record
class Schedule:
    """Cron expression of five fields, in a timezone of the tz database."""

    cron: str
    timezone: str = "UTC"
    active: Bool = True


@record
class Place:
    """Work pool of a deployment, with overrides of the pool's job template."""

    name: str
    work_queue_name: str | None = None
    job_variables: Mapping[str, Any] = field(default_factory=dict)


@record
class MachinesPlace(Place):
    """Work pool for the further machines of a stage over `machines` of the profile. `gpus`: GPUs per machine.
    The home is that of the stage: it has the same path on all machines.
    """

    gpus: Natural = 0


@record
class StagePlace(MachinesPlace):
    """Work pool for stages of one kind. `gpus`: GPUs per stage; `home`: directory on its worker."""

    home: str = "out"


@record
class Deployment:
    """One recipe on a schedule. `gpus`: slots of the concurrency limit `gpu`, and GPUs of the machine, that a
    stage holds while it runs.

    `stages`: kind of stage (`sft`, `rollout`, ...) → work pool, for stages that run in another pool than the
    flow; outputs are exchanged through `artifacts`, a directory or object store reachable by all workers.
    `machines`: work pool whose workers supply the further machines of stages over several; null: they join by
    `ratchet join`.
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
    machines: MachinesPlace | None = None
    description: str = ""
    tags: Sequence[str] = ()
    paused: Bool | None = None  # null keeps the state chosen in the Prefect UI

    @property
    def further(self) -> dict[str, MachinesPlace]:
        """Places besides the flow's: those of stages by kind, and that of `machines`."""
        return {**self.stages, **({MACHINES: self.machines} if self.machines else {})}


@record
class Alert:
    """A webhook and the events that call it. `url_from`: environment variable with its address."""

    url_from: str
    on: Sequence[When] = ("failed", "drift", "health")


@record
class Plan:
    """The whole file. `slots`: global concurrency limits, for example the number of GPUs that all runs
    together may hold.
    """

    schema: int
    deployments: Sequence[Deployment]
    work_pools: Mapping[str, WorkPool]
    slots: Mapping[str, Natural] = field(default_factory=dict)
    alerts: Mapping[str, Alert] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of all deployments, those of stages and machines in other pools too."""
        return [
            name
            for one in self.deployments
            for name in (one.name, *(deployment_of(one, key) for key in one.further))
        ]


def read(path: Path) -> tuple[Plan, dict[str, Any]]:
    """Read and validate the file; returns it with the base job template of each pool. `RecipeError` names the
    key and the nearest valid one.
    """
    raw = read_yaml(path, f"no file {path}; run this in the checkout, or give the file with --file")
    if not isinstance(raw, Mapping) or raw.get("schema") != SCHEMA:
        raise RecipeError(
            f"{path}: expected a mapping that begins with `schema: {SCHEMA}` and holds deployments, "
            "work_pools and slots"
        )
    try:
        plan = conform(Plan, raw, "")
        if REGISTRY in plan.slots:
            raise RecipeError(
                f"slots.{REGISTRY}: this limit is always 1, so that registrations are serialised; remove it"
            )
        if repeated := {name for name in plan.names if plan.names.count(name) > 1}:
            raise RecipeError(f"deployments: the name {min(repeated)!r} occurs twice")
        templates = {name: _template(path.parent, name, pool) for name, pool in plan.work_pools.items()}
        for deployment in plan.deployments:
            try:
                _check(deployment, plan, templates)
            except RecipeError as error:
                raise RecipeError(f"deployment {deployment.name!r}: {error}") from error
        for name, alert in plan.alerts.items():
            if "://" in alert.url_from:
                raise RecipeError(
                    f"alerts.{name}.url_from: the address of a webhook is a secret; name the environment "
                    "variable that holds it"
                )
            if not alert.on:
                raise RecipeError(
                    f"alerts.{name}.on: no events; expected some of {', '.join(get_args(When))}"
                )
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from error
    return plan, templates


def _check(deployment: Deployment, plan: Plan, templates: Mapping[str, Any]) -> None:
    """`RecipeError` for a deployment that no worker could run."""
    if "/" in deployment.name:
        raise RecipeError("a name has no '/'")
    _check_place(deployment.work_pool, deployment.gpus, deployment.home, "work_pool", plan, templates)
    for index, schedule in enumerate(deployment.schedules):
        _check_schedule(schedule, f"schedules[{index}]")
    recipe, profile = load(deployment.recipe, overrides=deployment.overrides, profile=deployment.profile)
    stages = stages_of(recipe, profile).values()
    does = {stage.does for stage in stages}
    asks = {one.does for one in stages if one.does in WAITING and not one.options["people"]["simulated"]}
    for name, place in deployment.stages.items():
        at = f"stages.{name}"
        if name not in does:
            raise RecipeError(f"{at}: no stage of {deployment.recipe} does {name!r}{nearest(name, does)}")
        if name in asks:
            raise RecipeError(
                f"{at}: people label in the home of the flow, and another worker would wait for their labels "
                "in its own; remove it"
            )
        _check_place(place, place.gpus, place.home, at, plan, templates)
        if place.name == deployment.work_pool.name:
            raise RecipeError(
                f"{at}: {place.name!r} is also the flow's pool, and the stage would wait forever for a "
                "slot held by the flow; use another pool or remove it"
            )
    if deployment.stages:
        if deployment.artifacts is None:
            raise RecipeError(
                "stages in other pools need `artifacts`, a directory or object store reachable by all workers"
            )
        check_address(deployment.artifacts)
    if deployment.machines:
        _check_machines(deployment, deployment.machines, profile, plan, templates)


def _check_machines(
    deployment: Deployment, place: MachinesPlace, profile: Profile, plan: Plan, templates: Mapping[str, Any]
) -> None:
    """`RecipeError` if the machines of a stage could never all run at the same time."""
    count, further = profile.machines, profile.machines - 1
    if not further:
        raise RecipeError(
            f"machines: the profile {profile.name} has `machines: 1`; remove it, or use a profile of several "
            "machines"
        )
    leaders = [(deployment.work_pool, deployment.gpus, deployment.home)]
    leaders += [(stage, stage.gpus, stage.home) for stage in deployment.stages.values()]
    for leader, gpus, home in leaders:
        _check_place(place, place.gpus, home, MACHINES, plan, templates)
        runs = further + (leader.name == place.name)
        limit = plan.work_pools[place.name].concurrency_limit
        if limit is not None and runs > limit:
            raise RecipeError(
                f"machines: a stage on {count} machines needs {runs} runs at once in {place.name!r}, whose "
                f"concurrency_limit is {limit}; raise it or use another pool"
            )
        if (total := gpus + further * place.gpus) > plan.slots.get("gpu", 0):
            raise RecipeError(
                f"machines: a stage on {count} machines needs {total} GPUs, but slots.gpu is "
                f"{plan.slots.get('gpu', 0)}"
            )


def _check_place(
    place: Place, gpus: int, home: str, at: str, plan: Plan, templates: Mapping[str, Any]
) -> None:
    """`RecipeError` for an unknown pool or job variable, too few GPUs, or a home within a container, in which
    checkpoints and outputs would be lost.
    """
    if place.name not in plan.work_pools:
        raise RecipeError(f"{at}: no work pool named {place.name!r}{nearest(place.name, plan.work_pools)}")
    variables = templates[place.name]["variables"]["properties"]
    for key in place.job_variables:
        if key.split(".")[0] not in variables:
            raise RecipeError(f"{at}.job_variables: unknown key {key!r}{nearest(key, variables)}")
    if gpus > plan.slots.get("gpu", 0):
        raise RecipeError(f"{at}: needs {gpus} GPUs, but slots.gpu is {plan.slots.get('gpu', 0)}")
    if plan.work_pools[place.name].type != "process" and not Path(home).is_absolute():
        raise RecipeError(
            f"{at}: home {home!r} would be lost with its container; use a mounted directory, such as /data"
        )


def _check_schedule(schedule: Schedule, where: str) -> None:
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
    except ValidationError as error:
        (key,) = error.errors()[0]["loc"]
        hint = "; expected five fields, such as 0 2 * * *"
        if key == "timezone":
            hint = nearest(schedule.timezone, available_timezones()).partition("; known")[0]  # of hundreds
        raise RecipeError(f"{where}: {key} {getattr(schedule, str(key))!r} is not valid{hint}") from None


def _template(folder: Path, name: str, pool: WorkPool) -> dict[str, Any]:
    path, where = folder / pool.base_job_template, f"work_pools.{name}.base_job_template"
    try:
        template = json.loads(path.read_text())
    except FileNotFoundError:
        raise RecipeError(f"{where}: no file {path}") from None
    except json.JSONDecodeError as error:
        raise RecipeError(f"{where}: {path} is not JSON: {error}") from None
    if set(template) != {"job_configuration", "variables"}:
        raise RecipeError(
            f"{where}: {path} expected the keys job_configuration and variables, got {', '.join(template)}"
        )
    return template


def deployment_of(deployment: Deployment, key: str) -> str:
    """Name of the deployment of a deployment's stages of one kind, or of its `machines`."""
    return f"{deployment.name}.{key}"
