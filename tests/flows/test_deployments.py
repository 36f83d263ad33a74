"""`flows/deployments.yaml`: validation, comparison with a Prefect server, deployment; real workers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings
from typer.testing import CliRunner

from ratchet.components.errors import RecipeError
from ratchet.components.labels.labels import Label, append_durably, read_items
from ratchet.flows.changes import changes
from ratchet.flows.cli import app
from ratchet.flows.deployments import read
from ratchet.flows.ui import free_port
from ratchet.tasks.process.locks import GPU_LOCKS, REGISTRY

ROOT = Path(__file__).resolve().parents[2]
POOLS = {
    "local": {"type": "process", "base_job_template": str(ROOT / "infra/work_pools/process.json")},
    "far": {"type": "process", "base_job_template": str(ROOT / "infra/work_pools/process.json")},
    "cluster": {"type": "kubernetes", "base_job_template": str(ROOT / "infra/work_pools/kubernetes.json")},
    "docker": {"type": "docker", "base_job_template": str(ROOT / "infra/work_pools/docker.json")},
    "few": {
        "type": "process",
        "base_job_template": str(ROOT / "infra/work_pools/process.json"),
        "concurrency_limit": 3,
    },
}
FOUR = {"profile": str(ROOT / "tests/flows/four_machines.yaml")}


def written(folder: Path, **deployment: Any) -> Path:
    """A file with one deployment; `deployment` changes its keys."""
    one = {
        "name": "toy",
        "recipe": "sft",
        "profile": "test",
        "work_pool": {"name": "local"},
        "schedules": [{"cron": "* * * * *"}],
        **deployment,
    }
    (folder / "deployments.yaml").write_text(
        yaml.safe_dump({"schema": 1, "slots": {"gpu": 2}, "work_pools": POOLS, "deployments": [one]})
    )
    return folder / "deployments.yaml"


def test_shipped_deployments_file_is_valid() -> None:
    plan, templates = read(ROOT / "flows" / "deployments.yaml")
    assert {one.name for one in plan.deployments} and set(templates) == set(plan.work_pools)


def test_commented_example_in_deployments_file_is_valid(tmp_path: Path) -> None:
    shown = re.sub(
        r"^( +)# (artifacts|stages): ", r"\1\2: ", (ROOT / "flows/deployments.yaml").read_text(), flags=re.M
    )
    (tmp_path / "deployments.yaml").write_text(shown.replace("../infra", str(ROOT / "infra")))
    plan, _ = read(tmp_path / "deployments.yaml")
    assert [one.name for one in plan.deployments if one.stages and one.artifacts] == ["nightly"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"recipie": "sft"}, r"deployments\[0\].recipie: unknown key 'recipie'; did you mean 'recipe'"),
        ({"recipe": "stf"}, "deployment 'toy': no recipe named 'stf'; did you mean 'sft'"),
        ({"profile": "cpuu"}, "deployment 'toy': no profile named 'cpuu'; did you mean 'cpu'"),
        ({"overrides": ["sft.limt=3"]}, "sft.limt: unknown key 'limt'; did you mean 'limit'"),
        (
            {"schedules": [{"cron": "0 25 * * *"}]},
            r"schedules\[0\]: cron '0 25 \* \* \*' is not valid; expected five fields",
        ),
        (
            {"schedules": [{"cron": "0 2 * * *", "timezone": "Europe/Berlim"}]},
            "timezone 'Europe/Berlim' is not valid; did you mean 'Europe",
        ),
        ({"schedules": [{}]}, r"schedules\[0\]: needs 'cron'"),
        ({"if_running": "wiat"}, "'wiat' is not one of wait, refuse"),
        ({"work_pool": {"name": "locl"}}, "no work pool named 'locl'; did you mean 'local'"),
        (
            {"work_pool": {"name": "local", "job_variables": {"workng_dir": "x"}}},
            "unknown key 'workng_dir'; did you mean 'working_dir'",
        ),
        ({"work_pool": {"name": "cluster"}}, "home 'out' would be lost with its container"),
        ({"gpus": 3}, "needs 3 GPUs, but slots.gpu is 2"),
        ({"stages": {"stf": {"name": "far"}}}, "stages.stf: no stage of sft does 'stf'; did you mean 'sft'"),
        ({"stages": {"sft": {"name": "faar"}}}, "stages.sft: no work pool named 'faar'; did you mean 'far'"),
        ({"stages": {"sft": {"name": "far", "gpus": 3}}}, "stages.sft: needs 3 GPUs, but slots.gpu is 2"),
        (
            {"stages": {"sft": {"name": "far", "job_variables": {"workng_dir": "x"}}}},
            "stages.sft.job_variables: unknown key 'workng_dir'",
        ),
        (
            {"stages": {"sft": {"name": "cluster"}}, "artifacts": "s3://a/b"},
            "stages.sft: home 'out' would be lost with its container",
        ),
        ({"stages": {"sft": {"name": "local"}}}, "stages.sft: 'local' is also the flow's pool"),
        ({"stages": {"sft": {"name": "far"}}}, "deployment 'toy': stages in other pools need `artifacts`"),
        (
            {"stages": {"sft": {"name": "far"}}, "artifacts": "here"},
            "deployment 'toy': artifacts: 'here' is a different folder for each worker",
        ),
        ({"machines": {"name": "far"}}, "toy': machines: the profile test has `machines: 1`; remove it"),
        ({"machines": {"name": "far", "home": "/data"}}, "unknown key 'home'"),
        ({"machines": {"name": "faar"}, **FOUR}, "machines: no work pool named 'faar'; did you mean 'far'"),
        (
            {"machines": {"name": "far", "job_variables": {"workng_dir": "x"}}, **FOUR},
            "machines.job_variables: unknown key 'workng_dir'; did you mean 'working_dir'",
        ),
        ({"machines": {"name": "cluster"}, **FOUR}, "machines: home 'out' would be lost with its container"),
        ({"machines": {"name": "far", "gpus": 3}, **FOUR}, "machines: needs 3 GPUs, but slots.gpu is 2"),
        (
            {"machines": {"name": "far", "gpus": 1}, **FOUR},
            "machines: a stage on 4 machines needs 3 GPUs, but slots.gpu is 2",
        ),
        (
            {"machines": {"name": "few"}, "work_pool": {"name": "few"}, **FOUR},
            "machines: a stage on 4 machines needs 4 runs at once in 'few', whose concurrency_limit is 3",
        ),
        (
            {
                "machines": {"name": "few"},
                "stages": {"sft": {"name": "few"}},
                "artifacts": "s3://a/b",
                **FOUR,
            },
            "machines: a stage on 4 machines needs 4 runs at once in 'few'",
        ),
    ],
)
def test_invalid_deployments_are_one_sentence(wrong: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=said):
        read(written(tmp_path, **wrong))


def test_people_are_asked_where_the_flow_runs(tmp_path: Path) -> None:
    place = {"recipe": "tiny_people", "stages": {"ask": {"name": "far"}}, "artifacts": str(tmp_path)}
    assert read(written(tmp_path, **place))[0].deployments[0].stages.keys() == {"ask"}, "simulated people"
    people = '{name: rewards.people, labels: 12, simulated: [], verifier: ""}'
    with pytest.raises(RecipeError, match=r"stages.ask: people label in the home of the flow"):
        read(written(tmp_path, overrides=[f"online.annotate=[{people}]"], **place))


FLOWS = {
    "3f2c2f0e-7c3e-4b62-9d0a-2f3c6f0a9b11": "post_training",
    "3f2c2f0e-7c3e-4b62-9d0a-2f3c6f0a9b12": "one_stage",
    "3f2c2f0e-7c3e-4b62-9d0a-2f3c6f0a9b13": "one_machine",
}


class Server:
    """In-memory fake of the Prefect client calls used by deploy."""

    def __init__(self) -> None:
        self.pools: dict[str, Any] = {}
        self.limits: dict[str, Any] = {}
        self.deployments: dict[str, Any] = {}
        self.blocks: dict[str, Any] = {}

    @staticmethod
    def _read(kept: dict[str, Any], name: str) -> Any:
        from prefect.exceptions import ObjectNotFound

        if name not in kept:
            raise ObjectNotFound(http_exc=Exception(name))
        return kept[name]

    def read_work_pool(self, name: str) -> Any:
        return self._read(self.pools, name)

    def read_global_concurrency_limit_by_name(self, name: str) -> Any:
        return self._read(self.limits, name)

    def read_deployment_by_name(self, name: str) -> Any:
        return self._read(self.deployments, name)

    def read_deployments(self, **_: Any) -> list[Any]:
        return list(self.deployments.values())

    def read_block_document_by_name(self, name: str, slug: str, include_secrets: bool = True) -> Any:
        assert not include_secrets, "deploying needs to know that it is there, not what it holds"
        return self._read(self.blocks, f"{slug}/{name}")

    def create_work_pool(self, pool: Any) -> None:
        self.pools[pool.name] = pool

    def update_work_pool(self, name: str, pool: Any) -> None:
        self.pools[name] = self.pools[name].model_copy(update=pool.model_dump(exclude_unset=True))

    def upsert_global_concurrency_limit_by_name(self, name: str, limit: int) -> None:
        self.limits[name] = SimpleNamespace(limit=limit)

    def create_flow_from_name(self, name: str) -> str:
        return next(flow for flow, known in FLOWS.items() if known == name)

    def create_deployment(self, **given: Any) -> None:
        from prefect.client.schemas.actions import DeploymentCreate

        checked = DeploymentCreate(**given)  # what the server would refuse, is refused
        limit = SimpleNamespace(limit=checked.concurrency_limit)
        name = f"{FLOWS[str(checked.flow_id)]}/{checked.name}"
        self.deployments[name] = SimpleNamespace(
            id=name,
            name=checked.name,
            global_concurrency_limit=limit,
            paused=False,
            concurrency_options=checked.concurrency_options,
            schedules=checked.schedules,
            **{
                k: getattr(checked, k)
                for k in given
                if k not in ("flow_id", "name", "schedules", "concurrency_options")
            },
        )

    def delete_deployment(self, name: str) -> None:
        del self.deployments[name]


def deploy(file: Path, server: Server) -> dict[str, tuple[str, tuple[str, ...]]]:
    plan, templates = read(file)
    found = changes(plan, templates, server, Path("/checkout"))
    for change in found:
        if change.carry_out:
            change.carry_out()
    return {change.name: (change.what, tuple(change.differs)) for change in found}


def test_deploy_is_idempotent_and_lists_differences(tmp_path: Path) -> None:
    server = Server()
    assert {what for what, _ in deploy(written(tmp_path), server).values()} == {"create"}
    assert {what for what, _ in deploy(written(tmp_path), server).values()} == {"keep"}
    changed = deploy(
        written(
            tmp_path, if_running="refuse", schedules=[{"cron": "0 2 * * *", "timezone": "Europe/Berlin"}]
        ),
        server,
    )
    what, differs = changed["toy"]
    assert what == "update" and "if_running: 'ENQUEUE' -> 'CANCEL_NEW'" in differs
    assert "schedules: ['* * * * * UTC'] -> ['0 2 * * * Europe/Berlin']" in differs
    assert {what for name, (what, _) in changed.items() if name != "toy"} == {"keep"}
    renamed = deploy(written(tmp_path, name="other"), server)
    assert (
        renamed["other"][0] == "create"
        and renamed["toy"][0] == "remove"
        and set(server.deployments) == {"post_training/other"}
    )


def test_dry_run_prints_the_changes_and_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda **_: contextlib.nullcontext(server))
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:4200/api"}):
        done = CliRunner().invoke(app, ["deploy", "--file", str(written(tmp_path)), "--dry-run"])
    assert "create  deployment  toy" in done.stdout and "would change." in done.stdout
    assert not server.deployments


def test_container_jobs_request_gpus(tmp_path: Path) -> None:
    server = Server()
    pool = {"name": "cluster", "job_variables": {"node_selector": {"zone": "a"}}}
    deploy(written(tmp_path, gpus=2, home="/data", work_pool=pool), server)
    made = server.deployments["post_training/toy"]
    assert made.job_variables == {"gpus": 2, "node_selector": {"zone": "a"}} and made.parameters["gpus"] == 2
    server.blocks["secret/mlflow-password"] = "..."
    deploy(written(tmp_path, gpus=2, home="/data", work_pool={"name": "docker"}), server)
    made = server.deployments["post_training/toy"]
    assert made.job_variables["device_requests"][0]["count"] == -1 and made.parameters["gpus"] == 2, (
        "all, of which a stage holds two"
    )
    volumes = json.loads((ROOT / "infra/work_pools/docker.json").read_text())["variables"]["properties"][
        "volumes"
    ]["default"]
    assert f"ratchet_gpus:{GPU_LOCKS}" in volumes, "or containers would not know of each other's"


def test_registry_concurrency_limit_is_always_one(tmp_path: Path) -> None:
    server = Server()
    deploy(written(tmp_path), server)
    assert {name: limit.limit for name, limit in server.limits.items()} == {"gpu": 2, REGISTRY: 1}
    server.limits[REGISTRY].limit = 5
    assert deploy(written(tmp_path), server)[REGISTRY] == ("update", ("limit: 5 -> 1",))
    file = written(tmp_path)
    file.write_text(file.read_text().replace("gpu: 2", f"gpu: 2\n  {REGISTRY}: 2"))
    with pytest.raises(RecipeError, match=rf"slots.{REGISTRY}"):
        read(file)


def test_remote_stages_get_their_own_deployment(tmp_path: Path) -> None:
    server, far = (
        Server(),
        {"sft": {"name": "far", "home": "/far"}, "evaluate": {"name": "cluster", "gpus": 1, "home": "/data"}},
    )
    made = deploy(written(tmp_path, stages=far, artifacts="s3://bucket/artifacts"), server)
    assert set(made) >= {"toy", "toy.sft", "toy.evaluate"} and {what for what, _ in made.values()} == {
        "create"
    }
    assert {
        what
        for what, _ in deploy(
            written(tmp_path, stages=far, artifacts="s3://bucket/artifacts"), server
        ).values()
    } == {"keep"}
    leader, sft, evaluate = (
        server.deployments[n] for n in ("post_training/toy", "one_stage/toy.sft", "one_stage/toy.evaluate")
    )
    assert leader.parameters["remote_stages"] == {
        "sft": "one_stage/toy.sft",
        "evaluate": "one_stage/toy.evaluate",
    }
    assert leader.parameters["artifacts"] == "s3://bucket/artifacts"
    assert (sft.work_pool_name, sft.parameters["home"], sft.job_variables) == (
        "far",
        "/far",
        {"working_dir": "/checkout"},
    )
    assert (evaluate.work_pool_name, evaluate.parameters["gpus"], evaluate.job_variables) == (
        "cluster",
        1,
        {"gpus": 1},
    )
    changed = deploy(written(tmp_path), server)
    assert {name: changed[name][0] for name in ("toy", "toy.sft", "toy.evaluate")} == {
        "toy": "update",
        "toy.sft": "remove",
        "toy.evaluate": "remove",
    }


def test_machines_get_a_deployment_that_the_flow_and_its_remote_stages_know(tmp_path: Path) -> None:
    server, stages = Server(), {"sft": {"name": "local", "home": "/far"}}
    given = {
        **FOUR,
        "work_pool": {"name": "far"},
        "stages": stages,
        "artifacts": "s3://bucket/artifacts",
        "machines": {
            "name": "few",
            "work_queue_name": "night",
            "job_variables": {"env.RATCHET_ADDRESS": "a"},
        },
    }
    made = deploy(written(tmp_path, **given), server)
    assert {made[name][0] for name in ("toy", "toy.sft", "toy.machines")} == {"create"}
    assert {what for what, _ in deploy(written(tmp_path, **given), server).values()} == {"keep"}
    machines = server.deployments["one_machine/toy.machines"]
    assert (machines.work_pool_name, machines.work_queue_name) == ("few", "night")
    assert machines.parameters == {"gpus": 0} and machines.entrypoint.endswith("one_machine.one_machine")
    assert machines.job_variables == {"working_dir": "/checkout", "env.RATCHET_ADDRESS": "a"}
    for name in ("post_training/toy", "one_stage/toy.sft"):
        assert server.deployments[name].parameters["machines"] == "one_machine/toy.machines"
    without = deploy(written(tmp_path, **FOUR), server)
    assert (without["toy"][0], without["toy.machines"][0]) == ("update", "remove")
    assert server.deployments["post_training/toy"].parameters["machines"] is None, "they join by hand"


@pytest.mark.parametrize(
    "asked",
    [
        {"home": "/data", "work_pool": {"name": "docker"}},
        {"stages": {"sft": {"name": "docker", "home": "/data"}}, "artifacts": "s3://bucket/artifacts"},
        {"machines": {"name": "docker"}, "home": "/data", **FOUR},
        {
            "work_pool": {
                "name": "local",
                "job_variables": {"env": {"PASSWORD": "{{ prefect.blocks.secret.mlflow-password.value }}"}},
            }
        },
        {
            "work_pool": {
                "name": "local",
                "job_variables": {"env.PASSWORD": "of {{ prefect.blocks.secret.mlflow-password }}"},
            }
        },
    ],
)
def test_missing_block_is_an_error_before_any_change(asked: dict[str, Any], tmp_path: Path) -> None:
    server = Server()
    with pytest.raises(RecipeError, match=r"'mlflow-password'.*python -c .*save\('mlflow-password'\)"):
        deploy(written(tmp_path, **asked), server)
    assert not server.pools and not server.deployments
    server.blocks["secret/mlflow-password"] = "..."
    assert deploy(written(tmp_path, **asked), server)["toy"][0] == "create"


@pytest.mark.parametrize(
    "variables",
    [{"env": {"MLFLOW_TRACKING_PASSWORD": "{{ $PASSWORD }}"}}, {"env.MLFLOW_TRACKING_PASSWORD": "none"}],
)
def test_unreferenced_block_may_be_missing(variables: dict[str, Any], tmp_path: Path) -> None:
    pool = {"name": "docker", "job_variables": variables}
    assert deploy(written(tmp_path, home="/data", work_pool=pool), Server())["toy"][0] == "create"


def test_docker_runs_use_the_team_network_addresses() -> None:
    """Prefect would pass the worker's own addresses, which a container cannot reach."""
    run = json.loads((ROOT / "infra/work_pools/docker.json").read_text())["variables"]["properties"]["env"][
        "default"
    ]
    worker = yaml.safe_load((ROOT / "infra/compose.yaml").read_text())["services"]["worker"]["environment"]
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL"):
        assert run[name] == worker[name]


# --- a real server and a real worker
# ------------------------------------------------------------------------------


@pytest.fixture
def prefect(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A Prefect server on loopback; yields the environment that points at it."""
    port = free_port()
    env = {
        **os.environ,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PYTHONPATH": str(ROOT / "infra" / "package"),
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_LOOP_SECONDS": "3600",
    }  # it ends within 20 s what we are to end at once
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        eventually(lambda: answers(env["PREFECT_API_URL"] + "/health"), 60, "the Prefect server")
        yield env
    finally:
        stop(server)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def eventually(true: Callable[[], Any], seconds: float, what: str, pause: float = 0.5) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(pause)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


def post(env: dict[str, str], path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{env['PREFECT_API_URL']}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def states(env: dict[str, str]) -> list[str]:
    return [run["state_type"] for run in post(env, "flow_runs/filter", {})]


def state_of(env: dict[str, str], run: dict[str, Any]) -> str:
    with urllib.request.urlopen(f"{env['PREFECT_API_URL']}/flow_runs/{run['id']}", timeout=10) as answer:
        return json.load(answer)["state_type"]


def stop(child: subprocess.Popen[Any]) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.mark.slow
def test_scheduled_run_is_finished_by_a_worker(
    prefect: dict[str, str], fresh_home: Callable[[str], Path], tmp_path: Path
) -> None:
    """To its end: the model it made is a version in the registry, and Prefect's page says so too."""
    from ratchet.tasks.registry.versions import history

    home = fresh_home("nightly")
    file = written(
        tmp_path,
        home=str(home),
        overrides=["sft.limit=32", "evaluate.prompts=4", "evaluate.max_tokens=8"],
        if_running="refuse",
        work_pool={"name": "local", "job_variables": {"working_dir": str(home)}},
    )
    command = [sys.executable, "-m", "ratchet.flows.cli", "deploy", "--file", str(file)]

    def ratchet(*more: str) -> str:
        return subprocess.run(
            [*command, *more], cwd=home, env=prefect, capture_output=True, text=True, check=True
        ).stdout

    assert "create  deployment  toy" in ratchet("--dry-run")
    assert "create  deployment  toy" in ratchet(), "--dry-run made something"
    assert ratchet().endswith("Nothing to change.\n")
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", "local"],
            env=prefect,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        eventually(lambda: "COMPLETED" in states(prefect), 300, "a scheduled run")
    finally:
        stop(worker)
    (run,) = (json.loads(path.read_text()) for path in home.glob("runs/*/run.json"))
    assert run["state"] == "finished" and run.get("versions") == {"sft": "1"}, (
        tmp_path / "worker.log"
    ).read_text()[-3000:]
    (version,) = history("sft", home=home)
    assert Path(version.path).resolve() == next(home.glob("store/sft-*")).resolve()


@pytest.mark.slow
def test_a_run_that_asks_people_is_suspended_and_the_labelling_page_resumes_it(
    prefect: dict[str, str], tmp_path: Path
) -> None:
    """Twice, for two rounds: while people label, no process works on the flow run."""
    base = f"http://127.0.0.1:{free_port()}"
    command, run, suspended = asking_run(prefect, tmp_path, rounds=2)
    with workers(tmp_path, prefect, "local"):
        for number in (1, 2):
            eventually(suspended, 240, f"suspension in round {number}")
            children = subprocess.run(["pgrep", "-f", "prefect.flow_engine"], capture_output=True, text=True)
            assert not children.stdout, "a process waits"
            with (tmp_path / f"page-{number}.log").open("w") as log:
                page = subprocess.Popen(
                    [*command, "label", run()["run"], "--home", str(tmp_path / "home"),
                     "--port", base.rpartition(":")[2]],
                    cwd=tmp_path, env=prefect, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            try:
                eventually(lambda: answers(base), 60, "the page")
                eventually(lambda: f"]({base})" in run_page(prefect), 30, "its link on the run's page")
                assert answer_all(base) == 6
                assert page.wait(240) == 0, "the page ends when the run has gone on"
            finally:
                stop(page)
        eventually(lambda: run().get("state") == "finished", 240, "the end of the run")
    assert states(prefect).count("COMPLETED") >= 1 and "FAILED" not in states(prefect)
    assert post(prefect, "automations/filter", {}) == [], "no deadline is left at the server"


@pytest.mark.slow
def test_the_server_resumes_a_suspended_run_at_its_deadline_while_no_page_is_served(
    prefect: dict[str, str], tmp_path: Path
) -> None:
    _, run, suspended = asking_run(prefect, tmp_path, rounds=1, deadline_hours=40 / 3600)
    with workers(tmp_path, prefect, "local"):
        eventually(suspended, 240, "suspension")
        (queue,) = (tmp_path / "home").glob("store/.work/ask_1-*/progress/queue")
        (one,) = post(prefect, "automations/filter", {})
        assert one["actions"][0]["type"] == "resume-flow-run"
        assert f"ratchet label {tmp_path / 'home' / 'runs'}" in run_page(prefect)
        first = read_items(queue)[0]
        append_durably(queue / "labels.jsonl", [Label(first.id, "ann", 0, "choice", [0, 1], 1.0)])
        eventually(lambda: run().get("state") == "finished", 240, "the end of the run")
    assert "FAILED" not in states(prefect) and "PAUSED" not in states(prefect)
    assert post(prefect, "automations/filter", {}) == []


def asking_run(
    prefect: dict[str, str], folder: Path, *, rounds: int, deadline_hours: float = 48.0
) -> tuple[list[str], Callable[[], dict[str, Any]], Callable[[], bool]]:
    """Schedule a run of a deployment that asks for 6 labels a round. Returns the command `ratchet`, and
    functions for the record of the run and for whether it is suspended.
    """
    home = folder / "home"
    people = f"rewards.people, labels: 6, overlap: 0.0, deadline_hours: {deadline_hours}"
    file = written(
        folder,
        home=str(home),
        recipe="tiny_people",
        overrides=[
            f"online.annotate=[{{name: {people}}}]",
            f"online.rounds={rounds}",
            "evaluate.prompts=4",
        ],
        schedules=[],
        work_pool={"name": "local", "job_variables": {"working_dir": str(folder)}},
    )
    command = [sys.executable, "-m", "ratchet.flows.cli"]
    quiet = {"cwd": folder, "env": prefect, "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([*command, "deploy", "--file", str(file)], **quiet)
    subprocess.run([sys.executable, "-m", "prefect", "deployment", "run", "post_training/toy"], **quiet)

    def run() -> dict[str, Any]:
        return next((json.loads(path.read_text()) for path in home.glob("runs/*/run.json")), {})

    def suspended() -> bool:
        return "PAUSED" in states(prefect) and run().get("state") == "waiting"

    return command, run, suspended


def run_page(prefect: dict[str, str]) -> str:
    """What the page of the flow run says about the labelling page."""
    (one,) = post(prefect, "artifacts/filter", {"artifacts": {"key": {"any_": ["labels-page"]}}})
    return one["data"]


def answer_all(base: str) -> int:
    """Prefer the first answer of every item of a labelling page; the number of labels."""
    given = 0
    with httpx.Client(base_url=base, headers={"X-Annotator": "ann"}, timeout=30) as client:
        while (item := client.get("/api/next").raise_for_status().json()["item"]) is not None:
            body = {"item": item["id"], "verdict": "choice", "position": 0, "seconds": 1.0}
            client.post("/api/labels", json=body).raise_for_status()
            given += 1
    return given


@pytest.mark.slow
def test_missing_block_error_gives_the_command_to_create_it(prefect: dict[str, str], tmp_path: Path) -> None:
    file = written(tmp_path, home="/data", work_pool={"name": "docker"})

    def ratchet(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ratchet.flows.cli", "deploy", "--file", str(file), *more],
            cwd=ROOT,
            env=prefect,
            capture_output=True,
            text=True,
        )

    dry, refused = ratchet("--dry-run"), ratchet()
    assert dry.returncode == refused.returncode == 2 and dry.stderr == refused.stderr
    command = re.search(r"make it with: python (-c .*)", refused.stderr)
    assert command, refused.stderr
    subprocess.run(
        f"{shlex.quote(sys.executable)} {command[1]}",
        shell=True,
        input="hunter2\n",
        env=prefect,
        text=True,
        check=True,
        start_new_session=True,
    )  # no terminal to ask at
    block = "block_types/slug/secret/block_documents/name/mlflow-password?include_secrets=true"
    with urllib.request.urlopen(f"{prefect['PREFECT_API_URL']}/{block}", timeout=10) as answer:
        assert json.load(answer)["data"] == {"value": "hunter2"}
    assert "create  deployment  toy" in ratchet().stdout


@contextlib.contextmanager
def workers(folder: Path, env: dict[str, str], *pools: str) -> Iterator[dict[str, subprocess.Popen[Any]]]:
    started = {}
    try:
        for pool in pools:
            with (folder / f"{pool}.log").open("w") as log:
                started[pool] = subprocess.Popen(
                    [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool],
                    env=env,
                    cwd=folder,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        yield started
    finally:
        for worker in started.values():
            stop(worker)


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        "folder",
        pytest.param(
            "s3",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("s3fs") is None, reason="s3fs comes with the extra `team`"
            ),
        ),
    ],
)
def test_remote_stages_run_through_the_exchange_address(
    where: str,
    prefect: dict[str, str],
    fresh_home: Callable[[str], Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Two workers that share no folder: one leads, the other curates and trains. The weights are those of one
    machine alone.
    """
    from ratchet.components.storage.store import read_manifest
    from ratchet.tasks.pipeline import Pipeline

    options = ["sft.limit=32", "evaluate.prompts=4"]
    near, far, alone = fresh_home("near"), tmp_path / "far", fresh_home("alone")
    for name in ("model_policy", "raw", "drafts", "curated", "sft"):
        Pipeline.open("sft", home=alone, profile="test", overrides=options).make(name)
    address = str(tmp_path / "between")
    if where == "s3":
        request.getfixturevalue("object_store")
        address, prefect = (
            "s3://ratchet/artifacts",
            prefect | {k: v for k, v in os.environ.items() if k.startswith("AWS_")},
        )
    places = {does: {"name": "far", "home": str(far)} for does in ("curate", "validate", "sft")}
    file = written(
        tmp_path,
        home=str(near),
        overrides=options,
        until="train",
        schedules=[],
        stages=places,
        artifacts=address,
        work_pool={"name": "local", "job_variables": {"working_dir": str(near)}},
    )
    far.mkdir()
    subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli", "deploy", "--file", str(file)],
        cwd=far,
        env=prefect,
        check=True,
    )
    with workers(tmp_path, prefect, "local", "far"):
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "deployment", "run", "post_training/toy", "--watch"],
            cwd=near,
            env=prefect,
            capture_output=True,
            text=True,
            timeout=400,
        )
    logs = "".join((tmp_path / f"{pool}.log").read_text()[-3000:] for pool in ("local", "far"))
    assert done.returncode == 0, done.stdout[-2000:] + logs
    (run,) = near.glob("runs/*/run.json")
    assert json.loads(run.read_text())["state"] == "finished"
    made = {
        p.name: (read_manifest(p) or {})
        for home in (near, far, alone)
        for p in [*home.glob("store/sft-*"), *home.glob("store/curated-*")]
    }
    assert len(made) == 2, "one key each, whoever made it"
    for name, manifest in made.items():
        assert all(
            (read_manifest(home / "store" / name) or {})["content"] == manifest["content"]
            for home in (near, far, alone)
        ), name
    assert {p.name.partition(".")[2] for p in far.glob("runs/*")} == {"drafts", "curated", "sft"}
    assert not list(far.glob("store/raw-*/.work")) and not list(near.glob("runs/*/logs/sft.log")), (
        "the leader trained by itself"
    )


@pytest.mark.slow
def test_remote_stage_failure_is_reported_by_the_flow(
    prefect: dict[str, str], fresh_home: Callable[[str], Path], tmp_path: Path
) -> None:
    near, far = fresh_home("near"), tmp_path / "far"
    far.mkdir()
    file = written(
        tmp_path,
        home=str(near),
        overrides=["sft.limit=32", "sft.max_tokens=8"],
        until="train",
        schedules=[],
        stages={"sft": {"name": "far", "home": str(far)}},
        artifacts=str(tmp_path / "between"),
        work_pool={"name": "local", "job_variables": {"working_dir": str(near)}},
    )
    subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli", "deploy", "--file", str(file)],
        cwd=far,
        env=prefect,
        check=True,
    )
    with workers(tmp_path, prefect, "local", "far"):
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "deployment", "run", "post_training/toy", "--watch"],
            cwd=near,
            env=prefect,
            capture_output=True,
            text=True,
            timeout=400,
        )
    assert done.returncode
    (run,) = near.glob("runs/*/run.json")
    told = json.loads(run.read_text())
    assert told["state"] == "failed" and re.search(
        r"stage 'sft' on one_stage/toy\.sft: Failed: GateError: .*sft\.max_tokens", told["error"]
    ), told


@pytest.mark.slow
def test_cancelled_run_ends_its_remote_stage_and_resumes(
    prefect: dict[str, str], fresh_home: Callable[[str], Path], tmp_path: Path
) -> None:
    """Cancelled as in the UI: the training process on the other worker ends within seconds, both workers
    continue, and the next run resumes.
    """
    from ratchet.components.storage.store import read_manifest
    from ratchet.tasks.pipeline import Pipeline
    from ratchet.tasks.process.orphans import marked

    options = ["sft.limit=240", "sft.fit.batch=4", "sft.fit.epochs=2", "sft.fit.save_every=5"]
    near, far, alone = fresh_home("near"), tmp_path / "far", fresh_home("alone")
    for name in ("model_policy", "raw", "drafts", "curated", "sft"):
        Pipeline.open("sft", home=alone, profile="test", overrides=options).make(name)
    far.mkdir()
    children = tmp_path / "children.yaml"
    children.write_text(
        (ROOT / "flows/recipes/profiles/test.yaml").read_text().replace("launch: inline", "launch: child")
    )
    file = written(
        tmp_path,
        profile=str(children),
        home=str(near),
        overrides=options,
        until="train",
        schedules=[],
        stages={"sft": {"name": "far", "home": str(far)}},
        artifacts=str(tmp_path / "between"),
        work_pool={"name": "local", "job_variables": {"working_dir": str(near)}},
    )
    subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli", "deploy", "--file", str(file)],
        cwd=far,
        env=prefect,
        check=True,
    )

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "prefect", "deployment", "run", "post_training/toy", "--watch"],
            cwd=near,
            env=prefect,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    mark = str(tmp_path)
    with workers(tmp_path, prefect | {"RATCHET_TEST_MARK": mark}, "local", "far") as started:
        first = start()
        eventually(
            lambda: list(far.glob("store/.work/sft-*/progress/checkpoint-*")),
            300,
            "a checkpoint on the other worker",
        )
        (run,) = (path.name for path in near.glob("runs/sft-*"))
        (leader,) = (found for found in post(prefect, "flow_runs/filter", {}) if found["name"] == run)
        ours = {w.pid for w in started.values()}
        theirs, asked = {*marked(mark, "RATCHET_TEST_MARK")} - ours, time.monotonic()
        post(
            prefect,
            f"flow_runs/{leader['id']}/set_state",
            {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False},
        )
        eventually(
            lambda: theirs.isdisjoint(marked(mark, "RATCHET_TEST_MARK")), 120, "the end of what trained"
        )
        took = time.monotonic() - asked
        print(
            f"{len(theirs)} processes, the training child among them, were gone {took:.1f} s after they "
            "were cancelled"
        )
        assert took < 30
        eventually(lambda: states(prefect) == ["CANCELLED"] * 2, 120, "cancelling")
        eventually(
            lambda: {*marked(mark, "RATCHET_TEST_MARK")} == ours,
            60,
            "the end of what the workers had started",
        )  # Prefect's sweepers too
        assert first.wait(60) and all(w.poll() is None for w in started.values())
        assert not list(far.glob("store/sft-*")), "it was over before it was cancelled"
        assert start().wait(300) == 0, "".join(
            (tmp_path / f"{pool}.log").read_text()[-3000:] for pool in ("local", "far")
        )
    manifests = [
        read_manifest(path) or {} for home in (near, far, alone) for path in home.glob("store/sft-*")
    ]
    assert len(manifests) == 3 and len({m["content"] for m in manifests}) == 1


def over_machines(folder: Path, machines: int) -> str:
    """A profile of two ranks on some machines, one inference engine on each; the file's path, which is the
    same for any number.
    """
    test = (ROOT / "flows/recipes/profiles/test.yaml").read_text().replace("launch: inline", "launch: child")
    file = folder / "machines.yaml"
    file.write_text(f"{test}\nlearner: deepspeed\nranks: 2\nmachines: {machines}\nengines: 1\n")
    return str(file)


class OverMachines:
    """A deployment of `sft` over two machines, both this one: workers of the pool `far` supply the second."""

    options = ("sft.limit=64", "sft.fit.batch=4", "sft.fit.save_every=2", "evaluate.prompts=24")

    def __init__(self, folder: Path, home: Path, env: dict[str, str], **deployment: Any) -> None:
        self.folder, self.home = folder, home
        self.env = env | {"RATCHET_ADDRESS": "127.0.0.1", "RATCHET_TEST_MARK": str(folder)}
        file = written(
            folder,
            profile=over_machines(folder, 2),
            home=str(home),
            schedules=[],
            machines={"name": "far"},
            work_pool={"name": "local", "job_variables": {"working_dir": str(home)}},
            **{"overrides": list(self.options), "until": "train", **deployment},
        )
        command = [sys.executable, "-m", "ratchet.flows.cli", "deploy", "--file", str(file)]
        subprocess.run(command, cwd=folder, env=self.env, check=True)

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "prefect", "deployment", "run", "post_training/toy", "--watch"]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=self.home, env=self.env, stdout=quiet, stderr=quiet)

    def machines(self, stage: str) -> list[dict[str, Any]]:
        """Flow runs of the second machine of a stage, oldest first."""
        runs = post(self.env, "flow_runs/filter", {"sort": "START_TIME_ASC"})
        return [run for run in runs if run["name"].endswith(f"-{stage}-machine-2")]

    def text(self, log: str) -> str:
        """The log of a stage of the run; empty before it is written."""
        return next((file.read_text() for file in self.home.glob(f"runs/*/logs/{log}")), "")

    def process(self, stage: str, what: str, here: bool) -> int | None:
        """The last process of a stage's engine or rank, on the machine of the flow or on the second one."""
        log = f"{stage}.log" if here else f"{stage}.{socket.gethostname()}.log"
        found = re.findall(rf"{what} \d of \d: process (\d+)", self.text(log))
        return int(found[-1]) if found else None

    def checkpoint(self) -> list[Path]:
        return list(self.home.glob("store/.work/sft-*/progress/checkpoint-*"))

    def logs(self) -> str:
        return "".join((self.folder / f"{pool}.log").read_text()[-4000:] for pool in ("local", "far"))


@pytest.mark.slow
def test_stages_over_machines_of_a_work_pool_make_the_bits_of_one_machine(
    prefect: dict[str, str], fresh_home: Callable[[str], Path], tmp_path: Path
) -> None:
    """Two ranks train, and two engines sample, on one machine and on two."""
    from ratchet.components.storage.store import read_manifest
    from ratchet.tasks.pipeline import Pipeline

    near, alone = fresh_home("near"), fresh_home("alone")
    one = Pipeline.open("sft", home=alone, profile=over_machines(tmp_path, 1), overrides=OverMachines.options)
    for name in one.stages:
        one.make(name)
    cluster = OverMachines(tmp_path, near, prefect, until="evaluate")
    with workers(tmp_path, cluster.env, "local", "far"):
        flow = cluster.start()
        stage = "answers_policy"
        engine = eventually(lambda: cluster.process(stage, "engine", here=True), 400, "sampling", 0.02)
        os.kill(engine, signal.SIGSTOP)  # until the second machine samples
        eventually(lambda: cluster.process(stage, "engine", here=False), 200, "an engine there")
        os.kill(engine, signal.SIGCONT)
        assert flow.wait(400) == 0, cluster.logs()
        eventually(lambda: {"RUNNING", "PENDING", "CANCELLING"}.isdisjoint(states(prefect)), 60, "an end")
        # cancelled: of stages that were over before their machine had started
        assert {*states(prefect)} <= {"COMPLETED", "CANCELLED"}
    for stage in ("sft", "answers_policy"):
        (run,) = cluster.machines(stage)
        assert (
            run["state_type"] == "COMPLETED" and run["parent_task_run_id"] and run["work_pool_name"] == "far"
        )
    assert cluster.process("sft", "rank", here=True) and cluster.process("sft", "rank", here=False)
    tasks = {run["name"] for run in post(prefect, "task_runs/filter", {})}
    assert {"ranks of sft", "engines of answers_policy"} <= tasks
    made = {path.name: read_manifest(path) or {} for path in alone.glob("store/*-*")}
    assert len(made) >= 6
    for name, manifest in made.items():
        assert (read_manifest(near / "store" / name) or {})["content"] == manifest["content"], name


@pytest.mark.slow
@pytest.mark.parametrize("end", ["CRASHED", "CANCELLED"])
def test_a_lost_machine_of_a_work_pool_is_requested_again_and_all_are_cancelled_with_the_flow(
    end: str, prefect: dict[str, str], fresh_home: Callable[[str], Path], tmp_path: Path
) -> None:
    """The training stage fails, is tried again with a new machine, and continues; its flow is cancelled."""
    from ratchet.tasks.process.orphans import marked

    cluster = OverMachines(
        tmp_path,
        fresh_home("near"),
        prefect,
        overrides=["sft.limit=240", "sft.fit.batch=4", "sft.fit.epochs=200", "sft.fit.save_every=2"],
    )
    with workers(tmp_path, cluster.env, "local", "far") as started:
        flow = cluster.start()
        eventually(cluster.checkpoint, 400, "a checkpoint")
        rank = cluster.process("sft", "rank", here=False)
        assert rank
        cancelling = {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False}
        (machine,) = cluster.machines("sft")
        if end == "CRASHED":
            os.killpg(os.getpgid(rank), signal.SIGKILL)  # the flow run and its ranks
        else:
            post(prefect, f"flow_runs/{machine['id']}/set_state", cancelling)
        eventually(
            lambda: [state_of(prefect, run) for run in cluster.machines("sft")] == [end, "RUNNING"],
            200,
            "another machine",
        )
        eventually(lambda: cluster.process("sft", "rank", here=False) != rank, 200, "its ranks")
        (leader,) = (run for run in post(prefect, "flow_runs/filter", {}) if not run["parent_task_run_id"])
        ours = {worker.pid for worker in started.values()}
        post(prefect, f"flow_runs/{leader['id']}/set_state", cancelling)
        eventually(
            lambda: [state_of(prefect, run) for run in cluster.machines("sft")] == [end, "CANCELLED"],
            120,
            "cancelling",
        )
        eventually(lambda: state_of(prefect, leader) == "CANCELLED", 120, "the end of the flow")
        eventually(
            lambda: {*marked(str(tmp_path), "RATCHET_TEST_MARK")} - {flow.pid} == ours,
            60,
            "the end of what the workers had started",
        )
        assert flow.wait(60)


@pytest.mark.slow
def test_run_from_the_command_line_is_cancelled_in_the_prefect_ui(
    prefect: dict[str, str], fresh_home: Callable[[str], Path]
) -> None:
    from ratchet.tasks.process.orphans import marked

    home = fresh_home("user")
    options = [
        "--set",
        "sft.limit=240",
        "--set",
        "sft.fit.batch=4",
        "--set",
        "sft.fit.epochs=200",
        "--set",
        "sft.fit.validate_every=0",
        "--set",
        "sft.fit.save_every=5",
    ]
    mark = str(home)
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ratchet.flows.cli",
            "run",
            "sft",
            "--profile",
            str(ROOT / "tests/soak/soak.yaml"),
            "--home",
            str(home),
            *options,
        ],
        cwd=home,
        env=prefect | {"RATCHET_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        eventually(lambda: list(home.glob("store/.work/sft-*/progress/checkpoint-*")), 300, "a checkpoint")
        (leader,) = post(prefect, "flow_runs/filter", {})
        assert [leader["name"]] == [path.name for path in home.glob("runs/*")]
        theirs, asked = {*marked(mark, "RATCHET_TEST_MARK")}, time.monotonic()
        assert len(theirs) > 1, "the stage's process among them"
        post(
            prefect,
            f"flow_runs/{leader['id']}/set_state",
            {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False},
        )
        eventually(lambda: not marked(mark, "RATCHET_TEST_MARK"), 120, "the end of all its processes")
        print(f"{len(theirs)} processes were gone {time.monotonic() - asked:.1f} s after they were cancelled")
        said = run.communicate(timeout=60)[0]
    finally:
        run.kill()
    assert run.returncode == 130 and "Stopped." in said and "Traceback" not in said, said[-3000:]
    assert states(prefect) == ["CANCELLED"]
    (told,) = home.glob("runs/*/run.json")
    assert json.loads(told.read_text())["state"] == "stopped" and list(
        home.glob("store/.work/sft-*/progress/checkpoint-*")
    ), "it can go on"


SLOTS = """
import sys, time
from pathlib import Path
from ratchet.tasks.process.locks import gpu_slots, registry_lock
with TURN:
    print(time.time(), flush=True)
    time.sleep(float(sys.argv[1]))
    print(time.time(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("turn", ["gpu_slots(2)", "registry_lock(Path(sys.argv[2]))"])
def test_concurrency_slots_are_exclusive(turn: str, prefect: dict[str, str], tmp_path: Path) -> None:
    """Two homes, which share no lock file."""
    file = written(tmp_path)
    subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli", "deploy", "--file", str(file)],
        env=prefect,
        cwd=ROOT,
        check=True,
    )
    command = [sys.executable, "-c", SLOTS.replace("TURN", turn), "3"]
    both = [
        subprocess.Popen(
            [*command, str(tmp_path / home)], env=prefect, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for home in ("one", "two")
    ]
    times = sorted([float(t) for t in child.communicate(timeout=60)[0].split()] for child in both)
    assert all(child.returncode == 0 for child in both) and times[0][1] <= times[1][0], (
        f"both held the slots at once: {times}"
    )
