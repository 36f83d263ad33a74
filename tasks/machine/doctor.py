"""Installation checks (`ratchet doctor`), and those of servers and remotes: MLflow, Prefect, the DVC remote.

Each check is a quick, read-only function; a crashing check is reported as a failure and does not stop the
others.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ratchet.components.errors import redacted
from ratchet.tasks.machine import checks
from ratchet.tasks.machine.checks import Finding, fail, not_writable, ok, warn
from ratchet.tasks.tracking.server import client, tracking_uri

ROOT = Path(__file__).resolve().parents[2]
ANSWER_SECONDS, DVC_SECONDS = 3.0, 15.0


def examine(home: Path, workspace: Path) -> Iterator[Finding]:
    """Yield all findings, within seconds; `workspace` is the DVC workspace."""
    wanted: list[tuple[str, Callable[[], Finding]]] = [
        ("packages", checks.packages_fit),
        ("lock file", lambda: checks.locked(ROOT / "infra" / "constraints.txt")),
        ("write access", lambda: checks.writable(home)),
        ("disk", lambda: checks.disk(home)),
        ("MLflow", lambda: mlflow(home)),
        ("Prefect", prefect),
        ("GPU", checks.gpu),
        ("DVC remote", lambda: dvc_remote(workspace)),
    ]
    for name, check in wanted:
        try:
            found = check()
        except Exception as error:
            found = fail(f"the check crashed: {type(error).__name__}: {error}", "report it with this line")
        yield replace(found, name=name, seen=redacted(found.seen))  # addresses may contain passwords


def mlflow(home: Path) -> Finding:
    """The MLflow server if configured, else the sqlite file."""
    uri = tracking_uri(home)
    if uri.startswith("http"):
        return served(
            uri.rstrip("/"),
            lambda: client(home).search_experiments(max_results=1),
            ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
            "start the server or unset MLFLOW_TRACKING_URI; runs continue without it and `ratchet sync` "
            "uploads later, but no model is registered meanwhile",
        )
    if not uri.startswith("sqlite:///"):
        return warn(f"{uri.split('://')[0]} store, not checked", "use a server or a sqlite:/// address")
    file = Path(uri.removeprefix("sqlite:///"))
    if not file.exists():
        return ok(f"no server configured; {file} will be created by the first run")
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=ANSWER_SECONDS) as base:
            (count,) = base.execute("select count(*) from runs").fetchone()
    except sqlite3.Error as error:
        return fail(f"{file}: {error}", "restore the file, or move it away and run `ratchet sync`")
    return ok(f"{file}, {count} runs")


def prefect() -> Finding:
    uri = os.environ.get("PREFECT_API_URL")
    if not uri:
        return ok("no server configured; each run starts its own")
    return served(
        uri.rstrip("/"),
        lambda: ask_prefect(uri),
        ("PREFECT_API_AUTH_STRING",),
        "start the server (prefect server start) or unset PREFECT_API_URL",
    )


def served(address: str, ask: Callable[[], object], secrets: Sequence[str], do: str) -> Finding:
    """Check that a server is reachable and, by the request `ask`, that it accepts our credentials, which
    `/health` does not need; `secrets` are the variables with them.
    """
    from httpx import HTTPStatusError
    from mlflow.exceptions import MlflowException

    began = time.monotonic()
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=ANSWER_SECONDS):
            took = 1000 * (time.monotonic() - began)
    except urllib.error.HTTPError as error:
        return fail(f"{address}/health answers {error.code} {error.reason}", do)
    except (OSError, ValueError) as error:
        return fail(f"{address}/health does not answer: {getattr(error, 'reason', error)}", do)
    try:
        ask()
    except HTTPStatusError as error:  # of Prefect
        status, message = error.response.status_code, str(error)
    except MlflowException as error:
        status, message = error.get_http_status_code(), str(error)
    else:
        return ok(f"{address} answers in {took:.0f} ms and accepts our credentials")
    if status == 401:
        names = " and ".join(secrets)
        missing = " and ".join(variable for variable in secrets if not os.environ.get(variable))
        why = f"{missing} not set here" if missing else f"the server expects a different {names}"
        seen = f"{address} is up but rejects our credentials (401): {why}"
        return fail(seen, f"set {names} to the server's credentials")
    return fail(
        f"{address} is up but answers {status}: {message.splitlines()[0][:300]}",
        f"check the permissions of the user in {secrets[0]}" if status == 403 else "see the server's log",
    )


def ask_prefect(uri: str) -> None:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY

    secrets = {"auth_string": PREFECT_API_AUTH_STRING.value(), "api_key": PREFECT_API_KEY.value()}
    with SyncPrefectClient(uri, **secrets) as server:
        server.read_flows(limit=1)


def dvc_remote(workspace: Path) -> Finding:
    """Check the DVC remote: a local folder directly, a distant one through DVC with its own credentials."""
    from ratchet.tasks.data.versioning import dvc

    if not (workspace / ".dvc").is_dir():
        seen = f"{workspace.resolve()} is not a DVC workspace: data is not versioned"
        return warn(seen, "run in the checkout, or `dvc init`")
    settings = dict(line.split("=", 1) for line in dvc(workspace, "config", "--list").splitlines())
    name = settings.get("core.remote")
    if not name:
        return warn("none: data versions stay on this machine", "dvc remote add -d <name> <address>")
    url = settings.get(f"remote.{name}.url", "")
    if "://" not in url:
        place = workspace / ".dvc" / url  # an absolute address stays as it is
        if why := not_writable(place):
            return fail(f"{name}: {why}", "fix its permissions or `dvc remote modify`")
        return ok(f"{name}: {place.resolve()}")
    command = [sys.executable, "-m", "dvc", "list-url", f"remote://{name}/"]
    try:
        listing = subprocess.run(command, cwd=workspace, capture_output=True, text=True, timeout=DVC_SECONDS)
    except subprocess.TimeoutExpired:
        seen = f"{name}: {url} does not answer within {DVC_SECONDS:g} s"
        return fail(seen, "check the network and `dvc remote list`")
    if listing.returncode:
        message = (listing.stderr.strip().splitlines() or ["no answer"])[0]
        return fail(f"{name}: {url}: {message}", "check its address and credentials: `dvc remote list`")
    return ok(f"{name}: {url} answers")
