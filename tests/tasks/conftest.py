"""A DVC workspace in a git repository, with a remote of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tasks.versioning import dvc

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = {"stages": {
    "train": {"cmd": f"{sys.executable} -c 'raise SystemExit(3)'", "deps": ["recipe.yaml"], "params": [{"recipe.yaml": None}],
              "outs": ["data/raw", "data/one.txt"], "metrics": [{"metrics.json": {"cache": False}}]}}}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    where = tmp_path / "work"
    where.mkdir()
    subprocess.run(["git", "-C", where, "init", "-q"], check=True)
    for key, value in (("user.name", "t"), ("user.email", "t@t")):
        subprocess.run(["git", "-C", where, "config", key, value], check=True)
    shutil.copytree(ROOT / ".dvc", where / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache", "config.local"))
    dvc(where, "remote", "add", "-d", "here", str(tmp_path / "remote"))
    (where / "dvc.yaml").write_text(yaml.safe_dump(PIPELINE))
    (where / "recipe.yaml").write_text("beta: 0.1\n")
    return where
