"""Shared by all tests: no network, quiet platforms, and one tiny model a session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

for name, value in {
    "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_LOGGING_LEVEL": "ERROR", "GX_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120", "MPLBACKEND": "Agg",
}.items():
    os.environ.setdefault(name, value)


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose store holds the tiny model (under a minute) and what tests make beside it."""
    from tasks.pipeline import Pipeline

    home = tmp_path_factory.mktemp("home")
    Pipeline.open("sft", home=home, profile="test").make("model_policy")
    return home


@pytest.fixture(scope="session")
def tiny_model(tiny_home: Path) -> Path:
    """The tiny model's directory: tests put other models into the same store."""
    from tasks.pipeline import Pipeline

    return Pipeline.open("sft", home=tiny_home, profile="test").artifact("model_policy").path


@pytest.fixture
def fresh_home(tiny_model: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A new home that holds the tiny model and nothing else."""

    def make(name: str) -> Path:
        shutil.copytree(tiny_model, tmp_path / name / "store" / tiny_model.name)
        return tmp_path / name

    return make
