"""Shared fixtures: no network, quiet platforms, one tiny model per session."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store, digest
from ratchet.components.types import Artifact

CODE = Path(__file__).resolve().parent.parent / "infra" / "package"
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(CODE), os.environ.get("PYTHONPATH")])
)  # processes of tests run this tree

for name, value in {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "GX_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",  # tests run in parallel, and two threads each would be slower
}.items():
    os.environ.setdefault(name, value)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--uptime",
        type=float,
        help="Seconds since the machine booted, as the tests' own process sees them in time.monotonic().",
    )


def pytest_configure(config: pytest.Config) -> None:
    """`--uptime 5`: the suite as on a machine that booted 5 s ago. What child processes read is unchanged."""
    if (uptime := config.getoption("--uptime")) is not None:
        real, started = time.monotonic, time.monotonic()
        time.monotonic = lambda: real() - started + uptime


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No garbage collection while modules are imported, a third of whose time it would take; afterwards it
    skips what is there, and looks for the garbage of tests less often.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that use the tiny model come last. Of two processes that start at the first test and in the
    middle, one trains it while the other has tests without it, instead of waiting for it.
    """
    tiny = {item.path for item in items if "tiny_home" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path in tiny)


@pytest.fixture
def bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed precision is used, as on hardware with bfloat16 products. CPUs without AVX-512 have no kernels to
    emulate them, so the test is skipped there.
    """
    import torch

    from ratchet.components.models import products

    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("no bfloat16 kernels on this CPU")
    monkeypatch.setattr(products, "has_bfloat16", lambda: True)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of this session of tests share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def copied_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests' own processes copy a new MLflow database instead of running its migrations, which take a
    second of each test. Processes that tests start make theirs.
    """
    from ratchet.tasks.tracking import server

    made, client = shared_folder(tmp_path_factory) / "mlflow.db", server.client

    def with_database(home: Path) -> Any:
        database = (home / "mlflow.db").resolve()
        if home.exists() and not database.exists() and server.tracking_uri(home) == f"sqlite:///{database}":
            with FileLock(f"{made}.lock"):
                if not made.exists():
                    from mlflow import MlflowClient

                    MlflowClient(f"sqlite:///{made}.new").search_experiments()
                    os.replace(f"{made}.new", made)
            shutil.copyfile(made, database)
        return client(home)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server, "client", with_database)
        yield


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Per-process home whose store contains the tiny model. Parallel test processes train it once (under a
    minute): others wait for the store's lock and copy it.
    """
    from ratchet.tasks.pipeline import Pipeline

    own, shared = tmp_path_factory.mktemp("home"), shared_folder(tmp_path_factory)
    model = Pipeline.open("sft", home=shared / "tiny", profile="test").make("model_policy").path
    shutil.copytree(model, own / "store" / model.name)
    return own


@pytest.fixture(scope="session")
def tiny_model(tiny_home: Path) -> Path:
    """Directory of the tiny model; tests add other models to the same store."""
    from ratchet.tasks.pipeline import Pipeline

    return Pipeline.open("sft", home=tiny_home, profile="test").artifact("model_policy").path


@pytest.fixture(scope="session")
def tiny_vision_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the tiny model with a vision encoder that has learnt nothing."""
    from ratchet.components.models.tiny_vision import add_vision

    out = tmp_path_factory.mktemp("tiny_vision") / "model"
    add_vision(tiny_model, out)
    return out


@pytest.fixture
def fresh_home(tiny_model: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A new home that holds the tiny model and nothing else."""

    def make(name: str) -> Path:
        shutil.copytree(tiny_model, tmp_path / name / "store" / tiny_model.name)
        return tmp_path / name

    return make


# --- products without the work: a store filled by hand, in milliseconds
# -----------------------------------------------

Publish = Callable[..., Artifact]


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    """publish("sft", {"policy": base, "data": data}) -> the artifact in the store of `tmp_path`."""

    def make(
        stage: str,
        inputs: Mapping[str, Artifact] | None = None,
        *,
        kind: str = "weights",
        text: str = "",
        results: Mapping[str, Any] | None = None,
        **meta: Any,
    ) -> Artifact:
        store, inputs = Store(tmp_path), inputs or {}
        key = digest([stage, text, [a.digest for a in inputs.values()]])
        with store.working(stage, key) as work:
            name = {"weights": "model.safetensors", "report": "results.json"}.get(kind, "evaluate.parquet")
            (work.product / name).write_text(json.dumps(results) if results else text or stage)
            work.metrics.write_text(json.dumps(meta))  # as a real one, other than last time
            roles = {role: a.path.name.rpartition("-")[0] for role, a in inputs.items()}
            return store.publish(
                work,
                stage,
                key,
                kind,
                [a.digest for a in inputs.values()],
                meta,
                {
                    "does": stage,
                    "options": {"data": "evaluate", "max_tokens": 8},
                    "inputs": roles,
                    "revision": "abc",
                    "packages": {"torch": "2"},
                    "machine": "here",
                },
            )

    return make


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., RunDirectory]:
    """run_of("name", stage=artifact, ...) -> a finished run that links to them."""

    def make(name: str, *, state: str = "finished", started: float = 0.0, **stages: Artifact) -> RunDirectory:
        run = RunDirectory(tmp_path, name)
        run.open("recipe: {}\n")
        for stage, artifact in stages.items():
            run.link(stage, artifact.path)
        run.record(
            recipe="fake", state=state, started=started, stages={n: a.digest for n, a in stages.items()}
        )
        return run

    return make


@pytest.fixture
def object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """An S3 server on loopback with a bucket `ratchet`, and the environment variables to reach it."""
    from ratchet.flows.ui import free_port, wait_for

    port = free_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    with (tmp_path / "s3.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/moto-api/", server, tmp_path / "s3.log", 120)
        import boto3

        boto3.client("s3").create_bucket(Bucket="ratchet")
        yield server
    finally:
        server.kill()
        server.wait()
