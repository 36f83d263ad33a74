"""What a command that runs stages sets and starts before Prefect and MLflow are imported."""

from __future__ import annotations

import os
import signal
from pathlib import Path

STARTUP = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"


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


def start_servers(forks: bool = False) -> None:
    """What takes seconds to start, side by side: the stages' fork server if `forks`, and Prefect's own server unless there is another.

    Prefect's ends with this process and is deaf to Ctrl-C: a terminal sends that to every process of the group, and a run that was
    stopped must still find its server to tell it so."""
    from tasks.orphans import leave_nothing_behind

    leave_nothing_behind()
    own = "PREFECT_API_URL" not in os.environ
    if forks:
        from tasks.launch import prepare

        prepare()
    if own:
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what is started now inherits this
        try:
            from prefect.client.orchestration import get_client

            with get_client(sync_client=True):
                pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
