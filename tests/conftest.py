"""Shared by all tests: no network, quiet platforms, and one tiny model a session."""

from __future__ import annotations

import os

for name, value in {
    "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_LOGGING_LEVEL": "ERROR", "GX_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120", "MPLBACKEND": "Agg",
}.items():
    os.environ.setdefault(name, value)
