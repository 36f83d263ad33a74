"""`dvc repro` and `ratchet run` leave the same dvc.lock, and the second of the two has nothing to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.flows.dvc_workspace import is_of_workspace, publish_and_commit, publish_outputs
from ratchet.flows.ui import free_port, wait_for
from ratchet.tasks.data.versioning import dvc, read_dvc_lock
from ratchet.tasks.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
RECIPE = {
    "schema": 1,
    "about": "The smallest with data, groups, weights and an evaluation.",
    "base": "offline",
    "profile": "test",
    "data": {"source": "generate:tiny_pairs?size=200&seed=1"},
    "register": None,
    "offline": {"limit": 8, "fit": {"updates": {"policy": [{"name": "preference.dpo"}]}}},
    "evaluate": {"prompts": 2, "max_tokens": 4, "perplexity_rows": 2},
}


def git(where: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-C", where, "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def prefect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One Prefect server and one MLflow file for all commands of a test, which would otherwise start their
    own.
    """
    port = free_port()
    for name, value in {
        "PREFECT_HOME": tmp_path / "prefect",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
    }.items():
        monkeypatch.setenv(name, str(value))
    with (tmp_path / "prefect.log").open("w") as log:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "prefect",
                "server",
                "start",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--no-services",
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/api/health", server, tmp_path / "prefect.log", 300)
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
        yield
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def workspace(fresh_home: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with this repository's dvc.yaml stages for another recipe; `ratchet` is on the path."""
    where = fresh_home("work/out").parent
    stages: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for stage in stages.values():
        stage.update(
            cmd=stage["cmd"].removesuffix("instruct") + "mine.yaml",
            params=[{"mine.yaml": None}],
            deps=[dep for dep in stage.get("deps", []) if dep.startswith("data/")],
        )
    (where / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    (where / "mine.yaml").write_text(yaml.safe_dump(RECIPE))
    (where / ".gitignore").write_text("/out\n")
    shutil.copytree(
        ROOT / ".dvc", where / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache", "config.local")
    )
    git(where, "init", "-q")
    command = tmp_path / "bin" / "ratchet"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ratchet.flows.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "infra" / "package"))
    return where


@pytest.mark.parametrize(
    ("command", "overrides", "same"),
    [
        ("ratchet stage train sft --profile test", [], True),
        ("ratchet stage train flows/recipes/sft.yaml --profile=test", [], True),
        ("ratchet stage train --profile test --set seed=5 sft", ["seed=5"], True),
        ("ratchet stage train sft --profile test", ["seed=5"], False),
        ("ratchet stage train sft --profile test --set seed=6", ["seed=5"], False),
        ("ratchet stage train sft", [], False),
        ("ratchet stage train dpo --profile test", [], False),
        ("make train", [], False),
    ],
)
def test_only_a_run_with_the_settings_of_dvc_yaml_is_recorded_by_dvc(
    command: str, overrides: list[str], same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"train": {"cmd": command}}}))
    pipeline = Pipeline.open("sft", home=tmp_path / "out", overrides=overrides, profile="test")
    assert is_of_workspace(pipeline, tmp_path) == same


def rows(count: int = 300) -> str:
    """Lines of a JSONL file with conversations."""
    turns = (("Why?", f"Because of {i}.") for i in range(count))
    talks = ([{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in turns)
    return "".join(json.dumps({"messages": talk}) + "\n" for talk in talks)


@pytest.mark.parametrize("source", ["data/raw/own.jsonl", "data/raw", "data"])
def test_a_run_does_not_replace_its_own_source(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stages = {"train": {"cmd": "ratchet stage train own.yaml"}, "fetch": {"outs": ["data/raw"]}}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    (tmp_path / "data" / "raw").mkdir(parents=True)
    (tmp_path / "data" / "raw" / "own.jsonl").write_text(rows())
    recipe = {
        "schema": 1,
        "about": "x",
        "base": "sft",
        "profile": "test",
        "data": {"source": f"path:{source}"},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(recipe))
    pipeline = Pipeline.open("own.yaml", home=tmp_path / "out")
    assert is_of_workspace(pipeline, tmp_path)
    assert publish_and_commit(pipeline, tmp_path) == {}
    assert (tmp_path / "data" / "raw" / "own.jsonl").read_text() == rows()


def test_only_outputs_that_dvc_yaml_lists_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.jsonl").write_text(rows())
    recipe = {
        "schema": 1,
        "about": "x",
        "base": "sft",
        "profile": "test",
        "data": {"source": "path:own.jsonl"},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(recipe))
    kept = tmp_path / "data" / "raw" / "of_the_user.csv"
    kept.parent.mkdir(parents=True)
    kept.write_text("x")
    pipeline = Pipeline.open("own.yaml", home=tmp_path / "out")
    pipeline.make("raw")
    stages: dict[str, Any] = {"fetch": {"cmd": "ratchet stage fetch own.yaml", "outs": []}}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    publish_outputs(pipeline, tmp_path, ("fetch",))
    assert kept.exists()
    stages["fetch"]["outs"] = ["data/raw/"]
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    publish_outputs(pipeline, tmp_path, ("fetch",))
    assert [file.name for file in kept.parent.iterdir()] == ["source.jsonl"]


def test_a_recipe_without_groups_has_empty_rounds(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"train": {"outs": ["data/rounds"]}}}))
    before = tmp_path / "data" / "rounds" / "rollout_1" / "groups.parquet"  # of the recipe before
    before.parent.mkdir(parents=True)
    before.write_text("x")
    publish_outputs(Pipeline.open("sft", home=tmp_path / "out", profile="test"), tmp_path, ("train",))
    assert list((tmp_path / "data" / "rounds").iterdir()) == []


@pytest.mark.slow  # two minutes: every stage by its own command, and the run again
def test_dvc_repro_and_the_flow_write_the_same_versions(
    workspace: Path, prefect: None, tmp_path: Path, tiny_model: Path
) -> None:
    dvc(workspace, "repro")
    versions = read_dvc_lock(workspace)
    assert list(versions) == [
        "data/raw",
        "data/curated",
        "data/quarantined",
        "data/rounds",
        "metrics.json",
        "plots",
    ]
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "by dvc repro")

    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", workspace, clone], check=True)
    (clone / "dvc.lock").unlink()  # or who did nothing would have it right
    shutil.copytree(tiny_model, clone / "out" / "store" / tiny_model.name)
    subprocess.run(["ratchet", "run", "mine.yaml"], cwd=clone, check=True, capture_output=True)
    assert (clone / "dvc.lock").read_text() == (workspace / "dvc.lock").read_text()
    assert "up to date" in dvc(clone, "repro")

    shown = json.loads(dvc(clone, "metrics", "show", "--json"))[""]["data"]["metrics.json"]["data"]
    assert shown == json.loads((clone / "metrics.json").read_text()) and 4 < len(shown) <= 12
    page = clone / "dvc_plots" / "index.html"
    dvc(clone, "plots", "show")
    assert "<img" in page.read_text() and "<script" not in page.read_text()
