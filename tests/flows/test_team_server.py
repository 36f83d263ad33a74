"""The services of infra/compose.yaml as processes: PostgreSQL, an S3 store, Prefect and MLflow with
passwords, a worker.

PostgreSQL is Debian's (`apt-get install postgresql`); clients need the extra `team`. Skipped where either is
missing.
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.flows.ui import free_port, wait_for
from ratchet.tasks.data.versioning import dvc, dvc_md5

ROOT = Path(__file__).resolve().parents[2]
BINARIES = next(
    (p for p in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True) if (p / "initdb").exists()),
    None,
)
MISSING = [
    name
    for name in ("psycopg2", "asyncpg", "boto3", "moto", "dvc_s3", "flask_wtf")
    if importlib.util.find_spec(name) is None
]
PASSWORD, MARK = "a-password-of-the-test", "RATCHET_TEST_MARK"
PIPELINE = {
    "stages": {
        "fetch": {"cmd": "ratchet stage fetch sft", "outs": ["data/raw"]},
        "curate": {
            "cmd": "ratchet stage curate sft",
            "deps": ["data/raw"],
            "outs": ["data/curated", "data/quarantined"],
        },
        "train": {"cmd": "ratchet stage train sft", "deps": ["data/curated"]},
        "evaluate": {
            "cmd": "ratchet stage evaluate sft",
            "deps": ["data/curated"],
            "metrics": [{"metrics.json": {"cache": False}}],
        },
    }
}
SMALL = ["sft.limit=32", "evaluate.prompts=4"]
LONG = [
    "sft.limit=480",
    "sft.fit.epochs=200",
    "sft.fit.validate_every=0",
    "sft.fit.batch=4",
]  # many minutes, were it not cancelled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL: apt-get install postgresql"),
    pytest.mark.skipif(
        bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (the extras team and dev)"
    ),
]


def postgres_command(name: str, *arguments: str, cwd: Path) -> None:
    """One of PostgreSQL's programs, as its own user when we are root, for it refuses root."""
    assert BINARIES is not None
    command = [str(BINARIES / name), *arguments]
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
    env = {"PGPASSWORD": PASSWORD, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=name != "pg_ctl",
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def postgres() -> Iterator[int]:
    """The port of a database server with a password, and the databases of compose.yaml."""
    folder = Path(
        tempfile.mkdtemp(prefix="ratchet-postgres-")
    )  # pytest's own folders are closed to other users
    port = free_port()
    (folder / "password").write_text(PASSWORD)
    if os.geteuid() == 0:
        for path in (folder, folder / "password"):
            shutil.chown(path, "postgres", "postgres")
    try:
        postgres_command(
            "initdb",
            "-D",
            str(folder / "data"),
            "-U",
            "ratchet",
            "-A",
            "scram-sha-256",
            f"--pwfile={folder / 'password'}",
            "-N",
            cwd=folder,
        )
        postgres_command(
            "pg_ctl",
            "-D",
            str(folder / "data"),
            "-l",
            str(folder / "log"),
            "-w",
            "-t",
            "60",
            "-o",
            f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off",
            "start",
            cwd=folder,
        )
        for name in ("prefect", "mlflow", "mlflow_auth"):
            postgres_command(
                "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "ratchet", name, cwd=folder
            )
        yield port
    finally:
        with contextlib.suppress(AssertionError):
            postgres_command("pg_ctl", "-D", str(folder / "data"), "-m", "immediate", "stop", cwd=folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def team(postgres: int, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Everything of compose.yaml but the worker; the environment of a client of it."""
    s3, prefect, mlflow = free_port(), free_port(), free_port()
    database = f"://ratchet:{PASSWORD}@127.0.0.1:{postgres}"
    auth = configparser.ConfigParser()
    auth["mlflow"] = {
        "default_permission": "READ",
        "database_uri": f"postgresql+psycopg2{database}/mlflow_auth",
        "admin_username": "admin",
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
    }
    with (tmp_path / "auth.ini").open("w") as file:
        auth.write(file)
    store = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}",
        "MLFLOW_S3_ENDPOINT_URL": f"http://127.0.0.1:{s3}",
    }
    base = {
        k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_API", "MLFLOW_TRACKING", "AWS_"))
    }
    base |= {
        "PYTHONPATH": str(ROOT / "infra" / "package"),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        MARK: str(tmp_path),
        "PREFECT_LOGGING_LEVEL": "INFO",
    }
    servers: dict[str, tuple[str, list[str], dict[str, str]]] = {
        "s3": (f"http://127.0.0.1:{s3}/moto-api/", ["moto.server", "-H", "127.0.0.1", "-p", str(s3)], {}),
        "prefect": (
            f"http://127.0.0.1:{prefect}/api/health",
            ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(prefect)],
            {
                "PREFECT_SERVER_API_AUTH_STRING": f"admin:{PASSWORD}",
                "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg{database}/prefect",
                "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",  # noqa: E501
            },
        ),
        "mlflow": (
            f"http://127.0.0.1:{mlflow}/health",
            [
                "mlflow",
                "server",
                "--app-name",
                "basic-auth",
                "--host",
                "127.0.0.1",
                "--port",
                str(mlflow),
                "--workers",
                "1",
                "--serve-artifacts",
            ],
            {
                **store,
                "MLFLOW_BACKEND_STORE_URI": f"postgresql+psycopg2{database}/mlflow",
                "MLFLOW_ARTIFACTS_DESTINATION": "s3://ratchet/mlflow",
                "MLFLOW_AUTH_CONFIG_PATH": str(tmp_path / "auth.ini"),
                "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
                "MLFLOW_FLASK_SERVER_SECRET_KEY": "cookies",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
        ),
    }
    running: list[subprocess.Popen[Any]] = []
    try:
        for name, (address, command, more) in servers.items():
            log = (tmp_path / f"{name}.log").open("w")
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", *command],
                    env={**base, **more, MARK: "a server"},
                    cwd=tmp_path,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
            if name == "s3":
                wait_for(address, running[-1], tmp_path / "s3.log", 300)
                import boto3

                boto3.client(
                    "s3",
                    endpoint_url=store["AWS_ENDPOINT_URL"],
                    aws_access_key_id="key",
                    aws_secret_access_key="secret",
                    region_name="us-east-1",
                ).create_bucket(Bucket="ratchet")
        for child, (name, (address, _, _)) in zip(running, servers.items(), strict=True):
            wait_for(address, child, tmp_path / f"{name}.log", 600)  # no server's health asks for a password
        client = {
            **base,
            "PREFECT_API_URL": f"http://127.0.0.1:{prefect}/api",
            "PREFECT_API_AUTH_STRING": f"admin:{PASSWORD}",
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{mlflow}",
            "MLFLOW_TRACKING_USERNAME": "admin",
            "MLFLOW_TRACKING_PASSWORD": PASSWORD,
            "PREFECT_WORKER_QUERY_SECONDS": "2",
        }
        yield {**client, "S3": store["AWS_ENDPOINT_URL"]}
    finally:
        for child in reversed(running):
            stop(child)


def call(address: str, body: Any, login: str | None, method: str = "POST") -> Any:
    """Response of an API to a request with `user:password`, or without credentials."""
    token = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    request = urllib.request.Request(
        address,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **token},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read() or "true")


def response(env: dict[str, str], method: str, path: str, body: Any = None) -> Any:
    """JSON response of the Prefect API; None if it is unreachable."""
    try:
        return call(env["PREFECT_API_URL"] + path, body, env["PREFECT_API_AUTH_STRING"], method)
    except urllib.error.HTTPError:
        raise
    except OSError:
        return None


def status(address: str, body: Any, login: str | None) -> int:
    try:
        call(address, body, login)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def eventually(true: Callable[[], Any], seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(1)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


def stop(child: subprocess.Popen[Any]) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def marked(mark: str) -> dict[int, str]:
    """Processes started under this test's mark, by their environment: pid -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdigit()
                and f"{MARK}={mark}\0".encode() in (entry / "environ").read_bytes() + b"\0"
            ):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def stage_of(processes: dict[int, str]) -> int:
    """The process of the stage that is being made: the fork server's child."""
    servers = {pid for pid, command in processes.items() if "multiprocessing.forkserver" in command}
    (stage,) = (
        pid
        for pid in servers
        if int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1]) in servers
    )
    return stage


def git(where: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-C", where, "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
        check=True,
        capture_output=True,
    )


def workspace_of(home: Path, s3: str) -> Path:
    """A checkout with DVC's stages for the tiny recipe and a remote in the S3 store."""
    git(home, "init", "-q")
    shutil.copytree(
        ROOT / ".dvc", home / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache", "config.local")
    )
    (home / "dvc.yaml").write_text(yaml.safe_dump(PIPELINE))
    (home / ".gitignore").write_text("/store\n/runs\n/prefect\n")
    dvc(home, "remote", "add", "-d", "team", "s3://ratchet/dvc")
    dvc(home, "remote", "modify", "team", "endpointurl", s3)
    return home


def test_servers_require_the_password(team: dict[str, str], tmp_path: Path) -> None:
    for address, body in (
        (f"{team['PREFECT_API_URL']}/flows/count", {}),
        (f"{team['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/experiments/search", {"max_results": 1}),
    ):
        logins = (None, "admin:another-password", f"nobody:{PASSWORD}", f"admin:{PASSWORD}")
        assert [status(address, body, login) for login in logins] == [401, 401, 401, 200], address

    def doctor(**more: str) -> dict[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "ratchet.flows.cli", "doctor", "--home", str(tmp_path / "none")],
            env={**team, **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert (
            PASSWORD not in done.stdout + done.stderr and "another-password" not in done.stdout + done.stderr
        )
        return {line.split()[1]: line for line in done.stdout.splitlines() if len(line.split()) > 1}

    found = doctor()
    assert all(
        found[name].startswith("ok") and "accepts our credentials" in found[name]
        for name in ("MLflow", "Prefect")
    ), found
    found = doctor(
        PREFECT_API_AUTH_STRING="admin:another-password", MLFLOW_TRACKING_PASSWORD="another-password"
    )
    for name, variable in (("MLflow", "MLFLOW_TRACKING_PASSWORD"), ("Prefect", "PREFECT_API_AUTH_STRING")):
        assert found[name].startswith("fail") and "(401)" in found[name] and f"{variable}" in found[name], (
            found
        )


def test_the_pipeline_on_a_team_server(
    team: dict[str, str], fresh_home: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = workspace_of(fresh_home("work"), team["S3"])
    pool = {"team": {"type": "process", "base_job_template": str(ROOT / "infra/work_pools/process.json")}}
    place = {"name": "team", "job_variables": {"working_dir": str(home)}}
    common = {"recipe": "sft", "profile": "test", "home": str(home), "work_pool": place}
    (tmp_path / "deployments.yaml").write_text(
        yaml.safe_dump(
            {
                "schema": 1,
                "work_pools": pool,
                "deployments": [
                    {"name": "nightly", "overrides": SMALL, **common},
                    {"name": "long", "overrides": LONG, "until": "train", **common, "profile": "cpu"},
                ],
            }
        )
    )  # stages in processes of their own
    subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli", "deploy", "--file", str(tmp_path / "deployments.yaml")],
        env=team,
        cwd=home,
        check=True,
    )
    log = (tmp_path / "worker.log").open("w")
    worker = subprocess.Popen(
        [sys.executable, "-m", "prefect", "worker", "start", "--pool", "team"],
        env=team,
        cwd=tmp_path,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )

    def start(name: str) -> str:
        deployment = response(team, "GET", f"/deployments/name/post_training/{name}")["id"]
        return response(
            team, "POST", f"/deployments/{deployment}/create_flow_run", {"state": {"type": "SCHEDULED"}}
        )["id"]

    def state(run: str) -> str:
        return response(team, "GET", f"/flow_runs/{run}")["state"]["type"]

    try:
        # 1. a worker makes a run to its end, and everything is where the team looks for it
        run = start("nightly")
        assert (
            eventually(lambda: (s := state(run)) in ("COMPLETED", "FAILED", "CRASHED") and s, 900, "the run")
            == "COMPLETED"
        ), (tmp_path / "worker.log").read_text()[-3000:]
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
            monkeypatch.setenv(name, team[name])
        from ratchet.tasks.registry.versions import history

        (version,) = history("sft", home=home)
        assert "candidate" in version.aliases and not version.external
        import boto3

        bucket = boto3.client(
            "s3",
            endpoint_url=team["S3"],
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        keys = [o["Key"] for o in bucket.list_objects_v2(Bucket="ratchet", Prefix="mlflow/")["Contents"]]
        assert any(key.endswith("model.safetensors") for key in keys) and any(
            key.endswith("report.html") for key in keys
        )

        # 2. the data's versions: pushed to S3, pulled into a fresh clone, the same bytes
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        dvc(home, "push")
        git(home, "add", "-A")
        git(home, "commit", "-qm", "one night")
        clone = tmp_path / "clone"
        subprocess.run(["git", "clone", "-q", home, clone], check=True)
        assert not (clone / "data" / "curated").exists()
        dvc(clone, "pull")
        for name in ("raw", "curated", "quarantined"):
            assert dvc_md5(clone / "data" / name) == dvc_md5(home / "data" / name)
        assert (clone / "data/curated/sft.parquet").read_bytes() == (
            home / "data/curated/sft.parquet"
        ).read_bytes()

        # 3. a run is cancelled as the page does it: what it started is gone, the worker goes on
        run = start("long")
        eventually(
            lambda: any(
                '"step": 3,' in f.read_text() for f in home.glob("store/.work/sft-*/product/metrics.jsonl")
            ),
            600,
            "training",
        )
        before = marked(str(tmp_path))
        assert len(before) > 3, f"worker, flow, fork server, stage; seen: {before}"
        stage, begun = stage_of(before), time.monotonic()
        response(
            team,
            "POST",
            f"/flow_runs/{run}/set_state",
            {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False},
        )
        eventually(lambda: stage not in marked(str(tmp_path)), 30, "the end of the training child")
        took = time.monotonic() - begun
        eventually(lambda: state(run) == "CANCELLED", 180, "cancelling")
        print(
            f"cancelled: the training child was gone after {took:.1f} s, the run CANCELLED after "
            f"{time.monotonic() - begun:.1f} s"
        )
        eventually(
            lambda: all(pid == worker.pid for pid in marked(str(tmp_path))),
            60,
            f"still there: {marked(str(tmp_path))}",
        )
        assert worker.poll() is None
        (cancelled,) = [
            f for f in home.glob("runs/*/run.json") if json.loads(f.read_text())["state"] != "finished"
        ]
        assert json.loads(cancelled.read_text())["state"] in ("stopped", "running")
    finally:
        stop(worker)
    assert PASSWORD not in (tmp_path / "worker.log").read_text()
