"""Environment variables and servers that a command needs before it runs stages."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ratchet.components.errors import ServiceError
from ratchet.tasks.process.prefect_server import STARTUP, start


def set_environment_defaults(home: Path) -> None:
    """Set environment variables that Prefect, MLflow and tokenizers read at import. Variables that are
    already set are kept.
    """
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
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ServiceError(f"--home {home}: no folder can be made there: {error.strerror}") from None
        defaults["PREFECT_HOME"] = str(folder)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def servers(fork_server: bool = False) -> Iterator[None]:
    """Start the stages' fork server (if `fork_server`) and, unless PREFECT_API_URL is set, a local Prefect
    server, in parallel with the import of Prefect. `ServiceError` if the server does not answer.
    """
    from ratchet.tasks.process.orphans import reap_children_on_exit

    reap_children_on_exit()
    own = None
    if "PREFECT_API_URL" not in os.environ:
        own = start(Path(os.environ["PREFECT_HOME"]))
    if fork_server:
        from ratchet.tasks.process.launch import prepare

        prepare()
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    import ratchet.flows.post_training  # noqa: F401

    if own is None:
        yield
        return
    own.wait(float(os.environ[STARTUP]))
    with temporary_settings(
        {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    ):  # heartbeats have no consumer here, and their thread delays the end of each flow by 1 s
        yield
