"""Installation checks (`ratchet doctor`). Each check is a quick, read-only function; a crashing check is
reported as a failure and does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ratchet.components.errors import redacted
from ratchet.tasks.machine.checks import Finding, disk, fail, gpu, locked, packages_fit, writable
from ratchet.tasks.machine.server_checks import dvc_remote, mlflow, prefect

ROOT = Path(__file__).resolve().parents[2]


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
            found = fail(f"the check crashed: {type(error).__name__}: {error}", "report it with this line")
        yield replace(found, name=name, seen=redacted(found.seen))  # addresses may contain passwords
