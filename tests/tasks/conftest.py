"""Fixtures for the tests of tasks: a DVC workspace in a git repository with a remote; inputs of the stage
`sft`.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ratchet.components.data.groups import write_groups
from ratchet.components.models.tiny import conversation, train_tiny
from ratchet.components.types import Artifact, Group, Prompt, Trajectory
from ratchet.tasks.data.versioning import dvc

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = {
    "stages": {
        "train": {
            "cmd": f"{sys.executable} -c 'raise SystemExit(3)'",
            "deps": ["recipe.yaml"],
            "params": [{"recipe.yaml": None}],
            "outs": ["data/raw", "data/one.txt"],
            "metrics": [{"metrics.json": {"cache": False}}],
        }
    }
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    where = tmp_path / "work"
    where.mkdir()
    subprocess.run(["git", "-C", where, "init", "-q"], check=True)
    for key, value in (("user.name", "t"), ("user.email", "t@t")):
        subprocess.run(["git", "-C", where, "config", key, value], check=True)
    shutil.copytree(
        ROOT / ".dvc", where / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache", "config.local")
    )
    dvc(where, "remote", "add", "-d", "here", str(tmp_path / "remote"))
    (where / "dvc.yaml").write_text(yaml.safe_dump(PIPELINE))
    (where / "recipe.yaml").write_text("beta: 0.1\n")
    return where


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """A policy and 32 conversations: what the stage `sft` reads."""
    policy, data, dice = tmp_path_factory.mktemp("policy"), tmp_path_factory.mktemp("data"), random.Random(0)
    train_tiny(policy, steps=3, hidden=64, layers=2, batch=8)
    groups = []
    for number in range(32):
        messages = conversation(dice)
        first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
        groups.append(
            Group(Prompt(str(number), tuple(messages[:first])), (Trajectory(tuple(messages[first:])),))
        )
    write_groups(data / "sft.parquet", groups)
    return {"policy": Artifact("weights", policy, "p"), "data": Artifact("data", data, "d")}
