"""What a command that runs stages sets before Prefect and MLflow are imported, and starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ratchet.tasks.process.prefect_server import STARTUP, start


def quiet_platforms(home: Path) -> None:
    """Settings the platforms only read from the environment, before they are imported. A user's own are respected."""
    defaults = {
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        STARTUP: "300",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GX_ANALYTICS_ENABLED": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if "PREFECT_API_URL" not in os.environ:
        folder = (home / "prefect").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        defaults["PREFECT_HOME"] = str(folder)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def servers(forks: bool = False) -> Iterator[None]:
    """What flows need, started side by side: the stages' fork server if `forks`, and Prefect's own server unless there is another, while
    this process imports what it needs of Prefect. Raises `ServiceError` when the server does not answer."""
    from ratchet.tasks.process.orphans import reap_children_on_exit

    reap_children_on_exit()
    own = None
    if "PREFECT_API_URL" not in os.environ:
        own = start(Path(os.environ["PREFECT_HOME"]))
    if forks:
        from ratchet.tasks.process.launch import prepare

        prepare()
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    import ratchet.flows.post_training  # noqa: F401

    if own is None:
        yield
        return
    own.wait(float(os.environ[STARTUP]))
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):  # nobody listens, and every flow waits a second for its thread to end
        yield
