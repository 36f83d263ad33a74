"""Installation checks (`ratchet doctor`). Each check is a quick, read-only function; a crashing check is
reported as a failure and does not stop the others.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from ratchet.components.errors import redacted
from ratchet.tasks.tracking.server import client, tracking_uri

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = "ratchet-rlhf"
ANSWER_SECONDS, DVC_SECONDS = 3.0, 15.0
WARN_BYTES, FAIL_BYTES = 10e9, 1e9


@dataclass(frozen=True)
class Finding:
    """Result of one check: name, state, observation, and advice if not ok."""

    name: str
    state: Literal["ok", "warn", "fail"]
    seen: str
    do: str = ""


def examine(home: Path, workspace: Path) -> Iterator[Finding]:
    """Yield all findings, within seconds; `workspace` is the DVC workspace."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("packages", packages_fit),
        ("lock file", lambda: locked(ROOT / "infra" / "constraints.txt")),
        ("write access", lambda: writable(home)),
        ("disk", lambda: disk(home)),
        ("MLflow", lambda: mlflow(home)),
        ("Prefect", prefect),
        ("GPU", gpu),
        ("DVC remote", lambda: dvc_remote(workspace)),
    ]
    for name, check in checks:
        try:
            found = check()
        except Exception as error:
            found = Finding(
                name,
                "fail",
                f"the check crashed: {type(error).__name__}: {error}",
                "report it with this line",
            )
        yield replace(found, seen=redacted(found.seen))  # addresses may contain passwords


def packages_fit() -> Finding:
    """Compare the distribution's requirements with the installed packages."""
    from packaging.requirements import Requirement

    if installed(DISTRIBUTION) is None:
        return Finding("packages", "warn", f"{DISTRIBUTION} is not installed, only imported", "make install")
    wrong, checked = [], 0
    for text in metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        checked += 1
        version = installed(requirement.name)
        if version is None:
            wrong.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if wrong:
        return Finding(
            "packages",
            "fail",
            "; ".join(wrong),
            "make install, or pip install --constraint infra/constraints.txt --editable .",
        )
    return Finding("packages", "ok", f"{checked} required packages installed in compatible versions")


def locked(constraints: Path) -> Finding:
    """Compare installed versions with the lock file: other versions may work but are untested."""
    if not constraints.exists():
        return Finding(
            "lock file", "warn", f"no {constraints}", "install from a checkout to compare versions"
        )
    pins = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", constraints.read_text(), re.MULTILINE))
    versions = {name: installed(name) for name in pins}
    other = [
        f"{name} {version} instead of {pins[name]}"
        for name, version in versions.items()
        if version and version.split("+")[0] != pins[name].split("+")[0]
    ]
    here = sum(v is not None for v in versions.values())
    if other:
        more = f" and {len(other) - 4} more" if len(other) > 4 else ""
        return Finding(
            "lock file",
            "warn",
            f"{len(other)} of {here} packages differ: {', '.join(other[:4])}{more}",
            "make install installs the tested versions",
        )
    return Finding("lock file", "ok", f"{here} packages as in {constraints.name}")


def writable(home: Path) -> Finding:
    if why := not_writable(home):
        return Finding("write access", "fail", why, "choose another --home, or fix its permissions")
    return Finding("write access", "ok", str(home.resolve()))


def disk(home: Path) -> Finding:
    free = shutil.disk_usage(existing(home)).free
    seen = f"{free / 1e9:.1f} GB free"
    if free >= WARN_BYTES:
        return Finding("disk", "ok", seen)
    return Finding(
        "disk", "fail" if free < FAIL_BYTES else "warn", seen, "ratchet gc lists what can be deleted"
    )


def mlflow(home: Path) -> Finding:
    """The MLflow server if configured, else the sqlite file."""
    uri = tracking_uri(home)
    if uri.startswith("http"):
        return served(
            "MLflow",
            uri.rstrip("/"),
            lambda: ask_mlflow(home),
            ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
            "start the server or unset MLFLOW_TRACKING_URI; runs continue without it and `ratchet sync` "
            "uploads later, but "
            "no model is registered meanwhile",
        )
    if not uri.startswith("sqlite:///"):
        return Finding(
            "MLflow",
            "warn",
            f"{uri.split('://')[0]} store, not checked",
            "use a server or a sqlite:/// address",
        )
    file = Path(uri.removeprefix("sqlite:///"))
    if not file.exists():
        return Finding("MLflow", "ok", f"no server configured; {file} will be created by the first run")
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=ANSWER_SECONDS) as base:
            (count,) = base.execute("select count(*) from runs").fetchone()
    except sqlite3.Error as error:
        return Finding(
            "MLflow", "fail", f"{file}: {error}", "restore the file, or move it away and run `ratchet sync`"
        )
    return Finding("MLflow", "ok", f"{file}, {count} runs")


def prefect() -> Finding:
    uri = os.environ.get("PREFECT_API_URL")
    if not uri:
        return Finding("Prefect", "ok", "no server configured; each run starts its own")
    return served(
        "Prefect",
        uri.rstrip("/"),
        lambda: ask_prefect(uri),
        ("PREFECT_API_AUTH_STRING",),
        "start the server (prefect server start) or unset PREFECT_API_URL",
    )


def served(
    name: str, address: str, ask: Callable[[], tuple[int, str]], secrets: Sequence[str], do: str
) -> Finding:
    """Check that a server is reachable and accepts our credentials. `/health` needs no password, so `ask`
    makes an authenticated request and returns (status, message); `secrets` are the variables with the
    credentials.
    """
    began = time.monotonic()
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=ANSWER_SECONDS):
            took = 1000 * (time.monotonic() - began)
    except urllib.error.HTTPError as error:
        return Finding(name, "fail", f"{address}/health answers {error.code} {error.reason}", do)
    except (OSError, ValueError) as error:
        return Finding(
            name, "fail", f"{address}/health does not answer: {getattr(error, 'reason', error)}", do
        )
    status, message = ask()
    if status == 401:
        missing = [variable for variable in secrets if not os.environ.get(variable)]
        why = (
            f"{' and '.join(missing)} not set here"
            if missing
            else f"the server expects a different {' and '.join(secrets)}"
        )
        return Finding(
            name,
            "fail",
            f"{address} is up but rejects our credentials (401): {why}",
            f"set {' and '.join(secrets)} to the server's credentials",
        )
    if status >= 400:
        return Finding(
            name,
            "fail",
            f"{address} is up but answers {status}: {message.splitlines()[0][:300]}",
            f"check the permissions of the user in {secrets[0]}" if status == 403 else "see the server's log",
        )
    return Finding(name, "ok", f"{address} answers in {took:.0f} ms and accepts our credentials")


def ask_mlflow(home: Path) -> tuple[int, str]:
    from mlflow.exceptions import MlflowException

    try:
        client(home).search_experiments(max_results=1)
    except MlflowException as error:
        return error.get_http_status_code(), str(error)
    return 200, ""


def ask_prefect(uri: str) -> tuple[int, str]:
    from httpx import HTTPStatusError
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY

    try:
        with SyncPrefectClient(
            uri, auth_string=PREFECT_API_AUTH_STRING.value(), api_key=PREFECT_API_KEY.value()
        ) as server:
            server.read_flows(limit=1)
    except HTTPStatusError as error:
        return error.response.status_code, str(error)
    return 200, ""


def gpu() -> Finding:
    """Check GPU and torch; torch is imported only if the driver lists a GPU."""
    version = installed("torch") or "none"
    tool = shutil.which("nvidia-smi")
    listed = (
        subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10).stdout.splitlines()
        if tool
        else []
    )
    if not listed:
        return Finding("GPU", "ok", f"none; torch {version}, profile cpu")
    import torch

    if torch.cuda.is_available():
        return Finding(
            "GPU", "ok", f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}, torch {version}"
        )
    return Finding(
        "GPU",
        "warn",
        f"the driver lists {len(listed)}, torch {version} sees none",
        "install a CUDA build of torch that fits the driver, or check CUDA_VISIBLE_DEVICES",
    )


def dvc_remote(workspace: Path) -> Finding:
    """Check the DVC remote: a local folder directly, a distant one through DVC with its own credentials."""
    from ratchet.tasks.data.versioning import dvc

    if not (workspace / ".dvc").is_dir():
        return Finding(
            "DVC remote",
            "warn",
            f"{workspace.resolve()} is not a DVC workspace: data is not versioned",
            "run in the checkout, or `dvc init`",
        )
    name = dvc(workspace, "config", "core.remote", missing_ok=True).strip()
    if not name:
        return Finding(
            "DVC remote",
            "warn",
            "none: data versions stay on this machine",
            "dvc remote add -d <name> <address>",
        )
    url = dvc(workspace, "config", f"remote.{name}.url", missing_ok=True).strip()
    if "://" not in url:
        place = Path(url) if Path(url).is_absolute() else workspace / ".dvc" / url
        if why := not_writable(place):
            return Finding(
                "DVC remote", "fail", f"{name}: {why}", "fix its permissions or `dvc remote modify`"
            )
        return Finding("DVC remote", "ok", f"{name}: {place.resolve()}")
    try:
        listing = subprocess.run(
            [sys.executable, "-m", "dvc", "list-url", f"remote://{name}/"],
            cwd=workspace,
            capture_output=True,
            text=True,
            timeout=DVC_SECONDS,
        )
        message = (listing.stderr.strip().splitlines() or ["no answer"])[0]
    except subprocess.TimeoutExpired:
        return Finding(
            "DVC remote",
            "fail",
            f"{name}: {url} does not answer within {DVC_SECONDS:g} s",
            "check the network and `dvc remote list`",
        )
    if listing.returncode:
        return Finding(
            "DVC remote",
            "fail",
            f"{name}: {url}: {message}",
            "check its address and credentials: `dvc remote list`",
        )
    return Finding("DVC remote", "ok", f"{name}: {url} answers")


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def not_writable(path: Path) -> str:
    """Why the path is not writable (by trying); empty if it is."""
    place = existing(path)
    try:
        with tempfile.NamedTemporaryFile(dir=place):
            return ""
    except OSError as error:
        return f"{place}: {error.strerror}"


def existing(path: Path) -> Path:
    """The path, or its nearest existing parent folder."""
    path = path.resolve()
    return next(p for p in (path, *path.parents) if p.exists())
