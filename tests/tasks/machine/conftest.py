"""Tests of the machine's checks begin without a configured server."""

import pytest


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_USERNAME",
        "MLFLOW_TRACKING_PASSWORD",
        "PREFECT_API_URL",
        "PREFECT_API_AUTH_STRING",
    ):
        monkeypatch.delenv(name, raising=False)
